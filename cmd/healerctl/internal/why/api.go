package why

import (
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// apiTimeout bounds all requests together: an API that answers none costs a person no more than
// that.
const apiTimeout = time.Minute

var (
	pods        = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	nodes       = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	claims      = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	volumes     = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}
	events      = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	secrets     = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	attachments = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "volumeattachments"}
)

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
