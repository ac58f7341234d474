package nodeserver

import "slices"

// room holds connections that got equally far, oldest first.
type room struct {
	limit    int
	visitors []*visitor
	// sources counts them by where they come from.
	sources map[string]int
}

func newRoom(limit int) room {
	return room{limit: limit, sources: map[string]int{}}
}

func (r *room) add(v *visitor) {
	r.visitors = append(r.visitors, v)
	r.sources[v.source]++
}

func (r *room) remove(v *visitor) {
	at := slices.Index(r.visitors, v)
	r.visitors = slices.Delete(r.visitors, at, at+1)
	if r.sources[v.source]--; r.sources[v.source] == 0 {
		delete(r.sources, v.source)
	}
}

// excess gives the one that has to leave a room that is over its limit. It is
// one of the source that has the most there: who floods the room closes his own
// connections. Among these it is the one that is missed least, the oldest of
// several.
func (r *room) excess() *visitor {
	if len(r.visitors) <= r.limit {
		return nil
	}
	most := 0
	for _, n := range r.sources {
		most = max(most, n)
	}
	var out *visitor
	for _, v := range r.visitors {
		if r.sources[v.source] == most && (out == nil || r.worth(v) < r.worth(out)) {
			out = v
		}
	}
	return out
}

// worth puts those without a call before the one that came last, and that one
// before those with a call: a call that is judged already would be judged again,
// and a flood would never let one come to its end.
func (r *room) worth(v *visitor) int {
	switch {
	case v.calls > 0:
		return 3
	case v == r.visitors[len(r.visitors)-1]:
		return 2
	case v.refused:
		return 0
	default:
		return 1
	}
}
