package bucket

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// comesAndGoes is a bucket that is there or not, behind a server that counts its questions.
type comesAndGoes struct {
	Bucket
	asked, gone atomic.Int32
}

func newComesAndGoes(t *testing.T) *comesAndGoes {
	t.Helper()
	b := &comesAndGoes{}
	b.Bucket = serve(t, func(w http.ResponseWriter, r *http.Request) {
		if at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date")); err == nil {
			w.Header().Set("Date", at.Format(http.TimeFormat)) // its clock is that of who asks
		}
		b.asked.Add(1)
		if b.gone.Load() == 0 {
			respond(200, nil, list)(w, r)
		} else {
			respond(404, nil, s3Error("NoSuchBucket", ""))(w, r)
		}
	})
	return b
}

// checked is what the provider finds in a volume, at once, whose mount answers with an errno;
// named is one that a caller asks for.
func checked(t *testing.T, p healer.Collector, errno syscall.Errno, named bool) []healer.Condition {
	t.Helper()
	dev := facts.Dev{Major: 1}
	c := healer.Case{
		Volume:      healer.Volume{Named: named},
		MountPoints: []healer.MountPoint{{Role: healer.RoleTarget, Path: "/target", Stack: []facts.Mount{{Path: "/target", Dev: dev}}}},
		Superblocks: map[facts.Dev]healer.Superblock{dev: {Answer: facts.Answer{Asked: true, Errno: errno}}},
	}
	began := time.Now()
	evidence, err := p.Collect(context.Background(), c)
	if err != nil || time.Since(began) != 0 {
		t.Fatalf("after %s: %v", time.Since(began), err)
	}
	c.Evidence = map[string]healer.Evidence{p.Name(): evidence}
	f, err := p.Examine(c)
	if err != nil || !f.Mine {
		t.Fatalf("%+v, %v", f, err)
	}
	return f.Conditions
}

// TestProvider has a bucket deleted. A check names that without waiting, and a later one is
// certain of it; a volume that works has its bucket asked once an hour.
func TestProvider(t *testing.T) {
	b := newComesAndGoes(t)
	synctest.Test(t, func(t *testing.T) {
		p := Provider(func(healer.Case) (Bucket, bool) { return b.Bucket, true })(nil).(healer.Collector)
		check := func(errno syscall.Errno) []healer.Condition { return checked(t, p, errno, false) }
		if check(0); len(check(0)) != 0 || b.asked.Load() != 1 {
			t.Errorf("a bucket that is there, asked %d times", b.asked.Load())
		}
		b.gone.Store(1)
		time.Sleep(askAgain)
		if len(check(0)) != 0 {
			t.Error("asked once more within the hour")
		}
		first := check(syscall.EIO)
		if len(first) != 1 || first[0].Reason != "BucketGone" || first[0].Status != healer.Inaccessible || first[0].MountPoint != "/target" {
			t.Errorf("the first answer: %+v", first)
		}
		time.Sleep(time.Minute)
		if certain := check(0); len(certain) != 1 || certain[0].Status != healer.DataLoss {
			t.Errorf("the second answer: %+v", certain)
		}
		b.gone.Store(0)
		time.Sleep(askAgain)
		if back := check(0); len(back) != 0 {
			t.Errorf("the bucket is back: %+v", back)
		}
		b.gone.Store(1)
		time.Sleep(askAgain)
		if one := checked(t, p, 0, true); len(one) != 1 || one[0].Status != healer.Inaccessible {
			t.Errorf("gone again, for a caller: %+v", one)
		}
	})
}

// TestProviderThatIsCutOff: a question that ends with who asks is no answer of the server's.
func TestProviderThatIsCutOff(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	b := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	p := Provider(func(healer.Case) (Bucket, bool) { return b, true })(nil).(healer.Collector)
	if evidence, err := p.Collect(ctx, healer.Case{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v", evidence, err)
	}
}

// TestProviderWithoutTime: what is left of a caller's time may be too short for any server.
func TestProviderWithoutTime(t *testing.T) {
	b := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	p := Provider(func(healer.Case) (Bucket, bool) { return b, true })(nil).(healer.Collector)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if evidence, err := p.Collect(ctx, healer.Case{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%+v, %v", evidence, err)
	}
}

// TestProviderFirstAnswer has two volumes of one bucket checked at once: nothing is known of it
// before the one question has its answer.
func TestProviderFirstAnswer(t *testing.T) {
	came, answers := make(chan struct{}), make(chan struct{})
	b := serve(t, func(w http.ResponseWriter, r *http.Request) {
		close(came) // panics if it is asked twice
		<-answers
		respond(403, nil, s3Error("InvalidAccessKeyId", ""))(w, r)
	})
	p := Provider(func(healer.Case) (Bucket, bool) { return b, true })(nil).(healer.Collector)
	found := make(chan healer.Evidence, 2)
	collect := func() {
		evidence, _ := p.Collect(t.Context(), healer.Case{})
		found <- evidence
	}
	go collect()
	<-came
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if evidence, err := p.Collect(ctx, healer.Case{}); err == nil {
		t.Errorf("before there is an answer: %+v", evidence)
	}
	go collect()
	close(answers)
	for range 2 {
		if one, _ := (<-found).([]Condition); len(one) != 1 || one[0].Reason != CredentialsRefused {
			t.Errorf("%+v", one)
		}
	}
}

// TestProviderNotJudged: what says nothing of the bucket makes no volume healthy.
func TestProviderNotJudged(t *testing.T) {
	b := serve(t, respond(418, nil, ""))
	p := Provider(func(healer.Case) (Bucket, bool) { return b, true })(nil).(healer.Collector)
	if evidence, err := p.Collect(context.Background(), healer.Case{}); err == nil || !strings.Contains(err.Error(), "418") {
		t.Errorf("%+v, %v", evidence, err)
	}
}

// TestProviderSharesNoAnswer has two volumes that differ in the secret key only: the one's
// good answer says nothing of the other's.
func TestProviderSharesNoAnswer(t *testing.T) {
	b := serve(t, respond(200, nil, list))
	p := Provider(func(c healer.Case) (Bucket, bool) {
		one := b
		one.SecretAccessKey = Secret(c.Volume.ID)
		return one, true
	})(nil).(*provider)
	for _, id := range []string{"a", "b", "a"} {
		if _, err := p.Collect(t.Context(), healer.Case{Volume: healer.Volume{ID: id}}); err != nil {
			t.Error(err)
		}
	}
	if len(p.asked) != 2 {
		t.Errorf("%d answers are kept", len(p.asked))
	}
}

// TestReplacedKeysAreForgotten as soon as their answer counts no longer: who may write a Secret may
// have another one, with a megabyte of certificates, at each check.
func TestReplacedKeysAreForgotten(t *testing.T) {
	p := &provider{asked: map[Bucket]*memory{{Name: "old"}: {at: time.Now().Add(-askEvery - time.Minute)}, {Name: "late"}: {at: time.Now().Add(-time.Minute)}}}
	p.memoryOf(Bucket{Name: "new"})
	if len(p.asked) != 2 || p.asked[Bucket{Name: "late"}] == nil {
		t.Errorf("%d are kept", len(p.asked))
	}
}
