package facts

import "time"

// Program is one run of a program.
type Program struct {
	// Path is the program, Args its arguments without its own name, Env its whole
	// environment. Everyone on the node can read them.
	Path string
	Args []string
	Env  []string
	// OnHost runs it in the worker's mount namespace, instead of the one that the worker
	// was started in.
	OnHost bool
	Stdin  []byte
	// Deadline is when it is killed; it is earlier than the caller's.
	Deadline time.Time
}

// ProgramResult is what a program left.
type ProgramResult struct {
	// Code is its exit code, -1 if a signal ended it.
	Code   int
	Output []byte
	// Cut is true if it wrote more than that, or if it succeeded and what it started still may.
	Cut bool
	// Late is true if it was killed at its deadline.
	Late bool
}
