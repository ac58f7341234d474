package why

import (
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// apiTimeout bounds all requests together: an API that answers none costs a person no more than
// that.
const apiTimeout = time.Minute

// api reads with the caller's rights, for an answer.
type api struct {
	Config
	*Answer
}

// read notes what could not be read, and reports whether it was. Which right is missing is in
// the API's own text. An object that is not there has been read.
func (a *api) read(what string, err error) bool {
	if err != nil && !apierrors.IsNotFound(err) {
		a.Unread = append(a.Unread, fmt.Sprintf("%s: %v", what, err))
	}
	return err == nil
}
