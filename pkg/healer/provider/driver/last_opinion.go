package driver

import (
	"fmt"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// opinionFor is how long an opinion stands while the driver cannot be asked.
const opinionFor = 10 * time.Minute

// maxLast leaves room in a message for how old the opinion is.
const maxLast = 400

type lastOpinion struct {
	Opinion
	// dev is what was mounted then.
	dev   facts.Dev
	asked time.Time
}

// keepOpinion remembers what the driver answered last; nil is that nothing is wrong.
func (m memory) keepOpinion(c healer.Case, o *Opinion) {
	if o == nil {
		m.opinions.Remove(keyOf(c))
		return
	}
	at, _ := firstMounted(c)
	m.opinions.Add(keyOf(c), lastOpinion{*o, at.Dev(), m.clock.Now()}, opinionFor)
}

// lastOpinion returns what the driver found wrong when it was asked last, for what is
// mounted now; nil if it was nothing, or too long ago.
func (m memory) lastOpinion(c healer.Case) *Opinion {
	at, mounted := firstMounted(c)
	known, kept := m.opinions.Get(keyOf(c))
	if !mounted || !kept {
		return nil
	}
	o := known.(lastOpinion)
	if o.dev != at.Dev() {
		return nil // the driver has staged another instance since
	}
	o.about(c, at)
	o.Text = fmt.Sprintf("%s; that was %s ago, and it cannot be asked now", clean(o.Text, maxLast), m.clock.Now().Sub(o.asked).Truncate(time.Second))
	return &o.Opinion
}
