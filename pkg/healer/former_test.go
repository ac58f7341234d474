package healer

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/host"
)

func dev(minor uint32) host.Dev { return host.Dev{Minor: minor} }

// on is a place with mounts of these superblocks, top first.
func on(role Role, path string, devs ...host.Dev) Place {
	p := Place{Role: role, Path: path, Proven: true}
	for _, d := range devs {
		p.Stack = append(p.Stack, host.Mount{Dev: d, Path: path})
	}
	return p
}

var (
	answered = host.Superblock{Answer: host.Answer{Asked: true}}
	disconn  = host.Superblock{Answer: host.Answer{Asked: true, Errno: 107}}
)

func TestFormerSuperblocks(t *testing.T) {
	recorded := func(boot string, places []host.Dev, former ...host.Dev) *Record {
		r := &Record{BootID: boot}
		for _, d := range places {
			r.Places = append(r.Places, PlaceRecord{Dev: d})
		}
		for _, d := range former {
			r.Former = append(r.Former, FormerSuperblock{Dev: d, BootID: boot})
		}
		return r
	}
	one, two, three := dev(1), dev(2), dev(3)
	for name, tc := range map[string]struct {
		places []Place
		sb     map[host.Dev]host.Superblock
		record *Record
		want   []host.Dev
	}{
		"healthy":                     {[]Place{on(Published, "/p", one), on(Staged, "/s", one)}, map[host.Dev]host.Superblock{one: answered}, recorded("b", []host.Dev{one}), nil},
		"a dead place":                {[]Place{on(Published, "/p", one), on(Staged, "/s", two)}, map[host.Dev]host.Superblock{one: disconn, two: answered}, nil, []host.Dev{one}},
		"not asked":                   {[]Place{on(Published, "/p", one)}, nil, nil, []host.Dev{one}},
		"silent":                      {[]Place{on(Published, "/p", one)}, map[host.Dev]host.Superblock{one: {Answer: host.Answer{Asked: true, Silent: true}}}, nil, []host.Dev{one}},
		"shut down":                   {[]Place{on(Published, "/p", one)}, map[host.Dev]host.Superblock{one: {Shutdown: true, Answer: host.Answer{Asked: true}}}, nil, []host.Dev{one}},
		"beneath the top":             {[]Place{on(Published, "/p", two, one, three)}, map[host.Dev]host.Superblock{two: answered}, nil, []host.Dev{one, three}},
		"beneath, and works":          {[]Place{on(Published, "/p", two, one), on(Staged, "/s", one)}, map[host.Dev]host.Superblock{one: answered, two: answered}, nil, nil},
		"recorded":                    {[]Place{on(Staged, "/s", two)}, map[host.Dev]host.Superblock{two: answered}, recorded("b", []host.Dev{one, two}), []host.Dev{one}},
		"replaced earlier":            {[]Place{on(Staged, "/s", two)}, map[host.Dev]host.Superblock{two: answered}, recorded("b", nil, three, one), []host.Dev{one, three}},
		"recorded in an earlier boot": {[]Place{on(Staged, "/s", two)}, map[host.Dev]host.Superblock{two: answered}, recorded("a", []host.Dev{one}, three), nil},
		"each once":                   {[]Place{on(Published, "/p", one), on(Published, "/q", one)}, map[host.Dev]host.Superblock{one: disconn}, recorded("b", []host.Dev{one}, one), []host.Dev{one}},
		"by major, then minor":        {[]Place{on(Published, "/p", host.Dev{Major: 8, Minor: 1}), on(Published, "/q", dev(9))}, nil, nil, []host.Dev{dev(9), {Major: 8, Minor: 1}}},
		"no number":                   {nil, nil, recorded("b", []host.Dev{{}}), nil},
		"nothing":                     {nil, nil, nil, nil},
	} {
		c := Case{BootID: "b", Places: tc.places, Superblocks: tc.sb, Record: tc.record}
		if got := c.formerSuperblocks(); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// inside is a place in a container.
func insideOf(n int, d host.Dev, proof string) Place {
	m := inContainer(n, "uid-a", d)
	m.Mount.Attr = host.AttrNoSUID
	return Place{Role: Container, Path: m.Path(), Stack: []host.Mount{m.Mount}, Inside: &Inside{ContainerMount: m, Proof: proof, Sharing: host.Sharing(fmt.Sprint(n))}}
}

// After a kill in the middle of a step nothing else would tell what was there.
func TestWhatIsReplacedIsNoted(t *testing.T) {
	dead := on(Published, podA, dev(1))
	dead.Stack[0].ID, dead.Stack[0].Root, dead.Stack[0].Attr, dead.Stack[0].Propagation.Shared = 7, "/sub", host.AttrNoExec, 3
	step := Step{Name: "replace", Cost: Replace, Place: dead}
	places := []Place{
		dead, insideOf(1, dev(1), "proven"), insideOf(2, dev(1), "proven"), insideOf(3, dev(1), ""), insideOf(4, dev(2), "proven"),
		func() Place { p := insideOf(5, dev(1), "proven"); p.Inside.Mount.ID = 0; return p }(),
	}
	noted := []FormerMount{
		{ID: 701, Namespace: 5001, Path: "/data", Attr: host.AttrNoSUID, Sharing: "1"},
		{ID: 702, Namespace: 5002, Path: "/data", Attr: host.AttrNoSUID, Sharing: "2"},
		{Namespace: 5005, Path: "/data", Attr: host.AttrNoSUID, Sharing: "5"}, // a kernel without unique ids
	}
	asItWas := PlaceRecord{Role: Published, Path: podA, Root: "/sub", Attr: host.AttrNoExec, Propagation: host.Propagation{Shared: 3}, Dev: dev(1), MountID: 7}
	before := PlaceRecord{Role: Published, Path: podA, Root: "/"}
	for name, tc := range map[string]struct {
		record *Record
		change func(*Step)
		places []PlaceRecord
		former []FormerSuperblock // nil: nothing is written
	}{
		"a place of the record":     {record: &Record{BootID: "b", Places: []PlaceRecord{before}}, places: []PlaceRecord{before}, former: []FormerSuperblock{{Dev: dev(1), BootID: "b", Mounts: noted}}},
		"a place that is not in it": {record: &Record{BootID: "b"}, places: []PlaceRecord{asItWas}, former: []FormerSuperblock{{Dev: dev(1), BootID: "b", Mounts: noted}}},
		"some of it is known": {
			record: &Record{BootID: "b", Places: []PlaceRecord{before}, Former: []FormerSuperblock{{Dev: dev(9), BootID: "b"}, {Dev: dev(1), BootID: "b", Mounts: noted[:1]}}},
			places: []PlaceRecord{before}, former: []FormerSuperblock{{Dev: dev(9), BootID: "b"}, {Dev: dev(1), BootID: "b", Mounts: noted}},
		},
		"all of it is known, but for the time": {
			record: &Record{BootID: "b", Places: []PlaceRecord{before}, Former: []FormerSuperblock{{Dev: dev(1), BootID: "b", Mounts: noted}}},
			places: []PlaceRecord{before}, former: []FormerSuperblock{{Dev: dev(1), BootID: "b", Mounts: noted}},
		},
		"all of it is known, in a container": {
			record: &Record{BootID: "b", Former: []FormerSuperblock{{Dev: dev(1), BootID: "b", Mounts: noted}}}, change: func(s *Step) { s.Place = places[1] },
		},
		"no record":                  {},
		"another step":               {record: &Record{BootID: "b"}, change: func(s *Step) { s.Cost = Rebind }},
		"a place that is not proven": {record: &Record{BootID: "b"}, change: func(s *Step) { s.Place.Proven = false }},
		"in a container": {
			record: &Record{BootID: "b"}, change: func(s *Step) { s.Place = places[1] }, former: []FormerSuperblock{{Dev: dev(1), BootID: "b", Mounts: noted}},
		},
		"another boot's are forgotten": {
			record: &Record{BootID: "a", Places: []PlaceRecord{before}, Former: []FormerSuperblock{{Dev: dev(1), BootID: "a", Mounts: noted[:1]}, {Dev: dev(9), BootID: "b"}}},
			places: []PlaceRecord{before}, former: []FormerSuperblock{{Dev: dev(9), BootID: "b"}, {Dev: dev(1), BootID: "b", Mounts: noted}},
		},
		"nothing is mounted": {record: &Record{BootID: "b"}, change: func(s *Step) { s.Place.Stack = nil }},
	} {
		b := newBench(t)
		s := step
		if tc.change != nil {
			tc.change(&s)
		}
		b.engine.noteFormer(context.Background(), Case{BootID: "b", Places: places, Record: tc.record}, s)
		if b.notes.saves != min(1, len(tc.former)) {
			t.Errorf("%s: %d saves", name, b.notes.saves)
		}
		for _, r := range b.notes.records {
			for i := range r.Former {
				if since := &r.Former[i].Since; host.SinceBoot()-*since < time.Minute {
					*since = 0
				} else if r.Former[i].Dev == dev(1) {
					t.Errorf("%s: replaced at %s", name, *since)
				}
			}
			if !reflect.DeepEqual(r.Former, tc.former) || !slices.Equal(r.Places, tc.places) {
				t.Errorf("%s: %+v", name, r)
			}
		}
		if tc.record != nil && name == "some of it is known" && len(tc.record.Former[1].Mounts) != 1 {
			t.Errorf("%s: the case was changed", name)
		}
	}
}

// A dead mount may lie beneath one that works, and what a step brings is no former
// instance.
func TestWhichMountsOfAStackAreNoted(t *testing.T) {
	other := func(m host.Mount) host.Mount { m.Source = "other"; return m }
	of := func(d host.Dev) host.Mount { return host.Mount{Dev: d, FSType: fuseType, Source: fuseSource} }
	one, two, three := dev(1), dev(2), dev(3)
	for name, tc := range map[string]struct {
		stack []host.Mount // the step brings three, which works as two does
		want  []host.Dev
	}{
		"a dead one":                {[]host.Mount{of(one)}, []host.Dev{one}},
		"what the step brings":      {[]host.Mount{of(three)}, nil},
		"a dead one beneath":        {[]host.Mount{of(three), of(one)}, []host.Dev{one}},
		"two dead ones":             {[]host.Mount{of(one), of(dev(4))}, []host.Dev{one, dev(4)}},
		"one that works beneath":    {[]host.Mount{of(one), of(two)}, []host.Dev{one}},
		"another volume's beneath":  {[]host.Mount{of(one), other(of(dev(4)))}, []host.Dev{one}},
		"another type's beneath":    {[]host.Mount{of(one), {Dev: dev(4), FSType: "ext4", Source: fuseSource}}, []host.Dev{one}},
		"the driver's, an old one":  {[]host.Mount{of(two)}, []host.Dev{two}},
		"ours above a dead one too": {[]host.Mount{of(three), of(three), of(one)}, []host.Dev{one}},
	} {
		b := newBench(t)
		record := Record{BootID: "b", Newest: 5, Places: []PlaceRecord{{Path: podA}}}
		b.engine.looked.healthy(volumeKey("", ""), host.SinceBoot(), 9)
		c := Case{BootID: "b", Record: &record, Superblocks: map[host.Dev]host.Superblock{two: answered, three: answered, one: disconn}}
		b.engine.noteFormer(context.Background(), c, Step{Cost: Replace, Source: three, Place: Place{Role: Published, Path: podA, Proven: true, Stack: tc.stack}})
		var got []host.Dev
		for _, r := range b.notes.records {
			for _, f := range r.Former {
				got = append(got, f.Dev)
			}
			if r.Newest != 9 {
				t.Errorf("%s: newest is %d", name, r.Newest)
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// Mount ids of this boot say nothing of a record from before.
func TestNoteInARecordOfAnEarlierBoot(t *testing.T) {
	b := newBench(t)
	b.engine.looked.healthy(volumeKey("", ""), host.SinceBoot(), 9)
	c := Case{BootID: "b", Record: &Record{BootID: "a", Newest: 5}}
	b.engine.noteFormer(context.Background(), c, Step{Cost: Replace, Place: on(Published, podA, dev(1))})
	if r := b.notes.records[volumeKey("", "")]; r.Newest != 5 || len(r.Former) != 1 {
		t.Errorf("%+v", r)
	}
}

// It is on the disk before the step begins.
func TestWhatIsReplacedIsNotedFirst(t *testing.T) {
	b := newBench(t)
	b.healthy()
	b.fall(podA, NotMounted)
	var during Record
	b.offer("replace", podA, Replace, func() error {
		during = b.notes.records[volumeKey(driver, volID)]
		return nil
	})
	b.steps[0].Place.Stack, b.steps[0].Place.Proven = []host.Mount{{Dev: dev(1), Path: podA}}, true
	b.heal(volume)
	if len(during.Former) != 1 || during.Former[0].Dev != dev(1) {
		t.Errorf("%+v", during)
	}
}

// Until when a device number was the volume's is known from the last look that
// showed it.
func TestUntilWhenItWasTheVolumes(t *testing.T) {
	for name, tc := range map[string]struct {
		c    Case
		r    Record
		want uint64
	}{
		"the host still has it":       {Case{BootID: "b", Newest: 90, Places: []Place{on(Published, podA, dev(2), dev(1))}}, Record{BootID: "b"}, 90},
		"as recorded":                 {Case{BootID: "b", Newest: 90}, Record{BootID: "b", Newest: 50, Places: []PlaceRecord{{Dev: dev(1)}}}, 50},
		"recorded in an earlier boot": {Case{BootID: "b", Newest: 90}, Record{BootID: "a", Newest: 50, Places: []PlaceRecord{{Dev: dev(1)}}}, 0},
		"only a container has it":     {Case{BootID: "b", Newest: 90, Places: []Place{insideOf(1, dev(1), "proven")}}, Record{BootID: "b", Newest: 50}, 0},
		"never before":                {Case{BootID: "b", Newest: 90}, Record{BootID: "b", Newest: 50}, 0},
		"known for longer": {
			Case{BootID: "b", Newest: 90}, Record{BootID: "b", Newest: 50, Places: []PlaceRecord{{Dev: dev(1)}}, Former: []FormerSuperblock{{Dev: dev(1), BootID: "b", Newest: 70}}}, 70,
		},
	} {
		if tc.r.addFormer(tc.c, dev(1)); len(tc.r.Former) != 1 || tc.r.Former[0].Newest != tc.want {
			t.Errorf("%s: %+v, want %d", name, tc.r.Former, tc.want)
		}
	}
}

func TestFormerIsBounded(t *testing.T) {
	var c Case
	for i := range maxFormerMounts + 10 {
		c.Places = append(c.Places, insideOf(i, dev(1), "proven"))
	}
	var r Record
	for i := range maxFormer + 4 {
		r.addFormer(c, dev(uint32(maxFormer+4-i)))
	}
	if len(r.Former) != maxFormer || r.Former[maxFormer-1].Dev != dev(1) || r.Former[0].Dev != dev(maxFormer) {
		t.Errorf("%d, the last is %s", len(r.Former), r.Former[len(r.Former)-1].Dev)
	}
	if n := len(r.Former[maxFormer-1].Mounts); n != maxFormerMounts {
		t.Errorf("%d mounts", n)
	}
}

// A slave of the host's mount is none any more when that is gone, and what is left
// of an interrupted replacement has not the attributes that it is to have.
func TestNoteOfAMount(t *testing.T) {
	slave := FormerMount{ID: 700, Namespace: 5000, Path: "/data", Attr: host.AttrNoSUID, Sharing: host.SharingSlave}
	r := &Record{BootID: "a", Former: []FormerSuperblock{{Dev: dev(9), BootID: "b"}, {Dev: dev(1), BootID: "b", Mounts: []FormerMount{slave}}}}
	// what came later in its place
	left := func(m *host.ContainerMount) { m.Mount.ID, m.Mount.Dev = 799, dev(2) }
	for name, tc := range map[string]struct {
		record *Record
		change func(*host.ContainerMount)
		noted  bool
	}{
		"seen before":                     {r, func(*host.ContainerMount) {}, true},
		"no record":                       {nil, func(*host.ContainerMount) {}, false},
		"in another boot":                 {&Record{BootID: "b", Former: []FormerSuperblock{{Dev: dev(1), BootID: "a", Mounts: []FormerMount{slave}}}}, func(*host.ContainerMount) {}, false},
		"another mount":                   {r, func(m *host.ContainerMount) { m.Mount.ID++ }, false},
		"another superblock":              {r, func(m *host.ContainerMount) { m.Mount.Dev = dev(2) }, false},
		"left in its place":               {r, left, true},
		"left elsewhere":                  {r, func(m *host.ContainerMount) { left(m); m.Mount.Path = "/x" }, false},
		"left in another container":       {r, func(m *host.ContainerMount) { left(m); m.Namespace++ }, false},
		"there before it, of another one": {r, func(m *host.ContainerMount) { left(m); m.Mount.ID = 600 }, false},
		"another of the same superblock":  {r, func(m *host.ContainerMount) { left(m); m.Mount.Dev = dev(1) }, false},
	} {
		m := inContainer(0, "uid-a", dev(1))
		tc.change(&m)
		note, noted := Case{BootID: "b", Record: tc.record}.noted(m)
		if noted != tc.noted || noted && note != slave {
			t.Errorf("%s: %v, %+v", name, noted, note)
		}
	}
}

// Mount ids begin anew with each boot.
func TestSharingOfAnEarlierBoot(t *testing.T) {
	b := newFUSEBench(t)
	b.renew()
	m := b.run("uid-a", formerly)
	k := volumeKey(driver, volID)
	r := b.notes.records[k]
	r.Former = []FormerSuperblock{{Dev: formerly, Mounts: []FormerMount{{ID: m.Mount.ID, Sharing: host.SharingSlave}}}}
	for boot, want := range map[string]host.Sharing{"boot-1": host.SharingSlave, "boot-0": host.SharingNone} {
		r.Former[0].BootID = boot
		b.notes.records[k] = r
		b.engine.looked = looked{}
		b.heal(volume)
		if got := b.insides(); len(got) != 1 || got[0].Inside.Sharing != want {
			t.Errorf("%s: %+v", boot, got)
		}
	}
}

func TestFormerThatIsKept(t *testing.T) {
	ago := func(d time.Duration) time.Duration { return host.SinceBoot() - d }
	now := Record{Places: []PlaceRecord{{Dev: dev(2)}}}
	for name, tc := range map[string]struct {
		record *Record
		want   []host.Dev
	}{
		"no record":        {nil, nil},
		"an earlier boot":  {&Record{BootID: "a", Places: []PlaceRecord{{Dev: dev(1)}}, Former: []FormerSuperblock{{Dev: dev(3), BootID: "b", Since: ago(0)}}}, nil},
		"as it was":        {&Record{BootID: "b", Places: []PlaceRecord{{Dev: dev(2)}}}, nil},
		"another one now":  {&Record{BootID: "b", Places: []PlaceRecord{{Dev: dev(1)}}}, []host.Dev{dev(1)}},
		"no number":        {&Record{BootID: "b", Places: []PlaceRecord{{}}}, nil},
		"a moment ago":     {&Record{BootID: "b", Former: []FormerSuperblock{{Dev: dev(1), BootID: "b", Since: ago(formerGrace - 10*time.Second)}}}, []host.Dev{dev(1)}},
		"long ago":         {&Record{BootID: "b", Former: []FormerSuperblock{{Dev: dev(1), BootID: "b", Since: ago(formerGrace + time.Second)}}}, nil},
		"in the future":    {&Record{BootID: "b", Former: []FormerSuperblock{{Dev: dev(1), BootID: "b", Since: ago(-time.Hour)}}}, nil},
		"its number again": {&Record{BootID: "b", Former: []FormerSuperblock{{Dev: dev(2), BootID: "b", Since: ago(0)}}}, nil},
	} {
		var got []host.Dev
		for _, f := range keepFormer(Case{BootID: "b", Record: tc.record}, now) {
			got = append(got, f.Dev)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// The driver may let an old daemon live for the containers that it has.
func TestFormerThatLingers(t *testing.T) {
	long := host.SinceBoot() - time.Hour
	was := &Record{BootID: "b", Former: []FormerSuperblock{
		{Dev: dev(1), BootID: "b", Since: long}, {Dev: dev(3), BootID: "b", Since: long}, {Dev: dev(2), BootID: "b", Since: long},
	}}
	c := Case{BootID: "b", Record: was, Lingering: []Inside{
		*insideOf(1, dev(1), "proven").Inside, *insideOf(2, dev(3), "").Inside, *insideOf(3, dev(2), "proven").Inside,
	}}
	kept := keepFormer(c, Record{Places: []PlaceRecord{{Dev: dev(4)}}})
	if len(kept) != 2 || kept[0].Dev != dev(1) || kept[1].Dev != dev(2) || len(kept[0].Mounts) != 1 || kept[0].Mounts[0].ID != 701 {
		t.Errorf("%+v", kept)
	}
	if len(was.Former[0].Mounts) != 0 {
		t.Error("the case was changed")
	}
}

// A container that was starting while the daemon died is found for a while.
func TestFormerOutlivesTheChange(t *testing.T) {
	b := newFUSEBench(t)
	b.renew()
	b.healthy()
	r, _ := b.notes.Load(driver, volID)
	if len(r.Former) != 1 || r.Former[0].Dev != formerly || r.Place(podA).Dev != renewed {
		t.Fatalf("%+v", r)
	}
	b.walks = nil
	if b.heal(volume); len(b.walks) == 0 {
		t.Error("nobody looks into containers any more")
	}
	k := volumeKey(driver, volID)
	old := b.notes.records[k]
	old.Former[0].Since = host.SinceBoot() - formerGrace - time.Second
	b.heal(volume)
	if b.walks = nil; true {
		b.heal(volume)
	}
	if r, _ = b.notes.Load(driver, volID); len(r.Former) != 0 || len(b.walks) != 0 {
		t.Errorf("looked for ever: %+v, %v", r.Former, b.walks)
	}
}

// Containers and subPaths come and go with their pod: a record of them would have
// them missed.
func TestContainersAndSubPathsAreNoRecordedPlaces(t *testing.T) {
	c := Case{Places: []Place{on(Published, podA, dev(1)), insideOf(1, dev(1), "proven"), on(Published, "/sub", dev(1))}}
	c.Places[1].Stack[0].Path = c.Places[1].Path
	c.Places[2].Layout.Kind = host.LayoutSubpath
	for i := range c.Places {
		c.Places[i].Proven = true
	}
	if r := newRecord(c); len(r.Places) != 1 || r.Places[0].Path != podA {
		t.Errorf("%+v", r.Places)
	}
}

// A record that cannot be written keeps nobody from healing.
func TestReplaceWithoutANote(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Records = unwritable{c.Records} })
	b.engine.noteFormer(context.Background(), Case{Record: &Record{}}, Step{Cost: Replace, Place: on(Published, podA, dev(1))})
}

type unwritable struct{ Records }

func (unwritable) Save(Record) error { return errors.New("disk full") }
