package operation

import (
	"encoding/gob"
	"fmt"
)

// Life says how long a process lives that ran an operation.
type Life int

const (
	// Pooled operations leave nothing behind in the process, which then takes
	// the next job: probes.
	Pooled Life = iota
	// Doubtful operations are pooled ones that are likely not to return: probes of a
	// storage that gave no answer the last time.
	Doubtful
	// Spent operations end their process: whatever they opened or changed about
	// it ends too. Mounts and namespace work.
	Spent
)

// Op is an operation that a worker can be asked to run. Its function cannot be called
// through it, so the server cannot run it by mistake.
type Op[Q, A any] struct {
	name string
	life Life
	run  func(Q) (A, error)
}

// Define makes an operation. Q and A must be gob-encodable; the name must be
// unique among those that one worker serves.
func Define[Q, A any](name string, life Life, run func(Q) (A, error)) Op[Q, A] {
	return Op[Q, A]{name: name, life: life, run: run}
}

// Name returns the operation's name.
func (o Op[Q, A]) Name() string { return o.name }

// Doubted returns the operation as one that is likely not to return.
func (o Op[Q, A]) Doubted() Op[Q, A] {
	o.life = Doubtful
	return o
}

// Life says how long a process lives that ran the operation.
func (o Op[Q, A]) Life() Life { return o.life }

// serve reads one request, runs it and writes the answer.
func (o Op[Q, A]) serve(dec *gob.Decoder, enc *gob.Encoder) error {
	var q Q
	if err := dec.Decode(&q); err != nil {
		return fmt.Errorf("read the request of %s: %w", o.name, err)
	}
	a, err := o.run(q)
	if encErr := enc.Encode(Head{Op: o.name, Err: toWire(err)}); encErr != nil {
		return encErr
	}
	return enc.Encode(a)
}

// Servable is an operation of any type, as Serve takes it.
type Servable interface {
	Name() string
	serve(dec *gob.Decoder, enc *gob.Encoder) error
}

// Head goes before every request and every answer.
type Head struct {
	Op  string
	Err *Error
}

// Greeting is the first message to a new worker.
type Greeting struct {
	// Namespace is true when the worker finds a mount namespace to enter at
	// NamespaceFD.
	Namespace bool
}
