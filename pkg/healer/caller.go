package healer

import "context"

type callerKey struct{}

// WithCaller notes on whose behalf the engine works: the audit log names it.
func WithCaller(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, callerKey{}, name)
}

// CallerOf gives the name that WithCaller noted; empty: nobody's.
func CallerOf(ctx context.Context) string {
	name, _ := ctx.Value(callerKey{}).(string)
	return name
}
