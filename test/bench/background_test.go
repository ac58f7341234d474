package bench

import (
	"context"
	"sync"
	"time"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

// backgroundQuestion asks for calls to many volumes at a time, one caller for
// each, and none of them waits for another.
type backgroundQuestion struct {
	Socket   string
	Requests [][]byte
	// Calls is how often each volume is called; 0: until For has passed.
	Calls int
	For   time.Duration
	// Every is the time from the start of one call to that of the next, if that
	// one has ended. The callers' starts are spread over it.
	Every time.Duration
}

// backgroundAnswer counts the answers.
type backgroundAnswer struct {
	Healthy, Abnormal int
	// Failed counts errors by their text.
	Failed map[string]int
}

// callAll is the callers.
func callAll(q backgroundQuestion) (backgroundAnswer, error) {
	c, err := dial(q.Socket)
	if err != nil {
		return backgroundAnswer{}, err
	}
	defer c.Close()
	requests, err := decode(q.Requests)
	if err != nil {
		return backgroundAnswer{}, err
	}
	client := healerpb.NewHealerNodeClient(c)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		seen = backgroundAnswer{Failed: map[string]int{}}
	)
	start := time.Now()
	for at, request := range requests {
		next := start.Add(q.Every * time.Duration(at) / time.Duration(len(requests)))
		wg.Go(func() {
			more := func(call int) bool {
				if q.Calls > 0 {
					return call < q.Calls
				}
				return max(time.Since(start), next.Sub(start)) < q.For
			}
			for call := 0; more(call); call++ {
				time.Sleep(time.Until(next))
				next = time.Now().Add(q.Every)
				a, err := client.NodeHealer(context.Background(), request)
				mu.Lock()
				seen.count(a, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return seen, nil
}

func (a *backgroundAnswer) count(answer *healerpb.NodeHealerResponse, err error) {
	switch {
	case err != nil:
		a.Failed[err.Error()]++
	case answer.GetAbnormal():
		a.Abnormal++
	default:
		a.Healthy++
	}
}
