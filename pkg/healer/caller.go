package healer

import "context"

// CallerLoop is the caller on whose behalf the node's own loop works.
const CallerLoop = "loop"

type callerKey struct{}

// WithCaller adds on whose behalf the engine works, which the audit log names.
func WithCaller(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, callerKey{}, name)
}

// CallerOf returns the name that WithCaller added, empty without one.
func CallerOf(ctx context.Context) string {
	name, _ := ctx.Value(callerKey{}).(string)
	return name
}
