package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// tokenAPI makes tokens that are all different, and keeps what was asked for.
type tokenAPI struct {
	asked []*authenticationv1.TokenRequest
	err   error
}

func (a *tokenAPI) gateways() *gateways {
	api := interceptor.NewClient(fake.NewFakeClient(), interceptor.Funcs{
		SubResourceCreate: func(_ context.Context, _ client.Client, sub string, account, body client.Object, _ ...client.SubResourceCreateOption) error {
			request, ok := body.(*authenticationv1.TokenRequest)
			if !ok || sub != "token" || account.GetNamespace() != "gateways" || account.GetName() != "controller" {
				return fmt.Errorf("asked for %s of %s: %+v", sub, account.GetName(), body)
			}
			a.asked = append(a.asked, request)
			request.Status.Token = fmt.Sprint("token-", len(a.asked))
			return a.err
		},
	})
	return newGateways(nil, api, Gateways{Self: ownIdentity})
}

// TestTokenIsForOneNode, for ten minutes, and bound to the pod.
func TestTokenIsForOneNode(t *testing.T) {
	api := &tokenAPI{}
	made := api.gateways()
	for i, node := range []string{"node-1", "node-2"} {
		token, err := made.makeToken(t.Context(), node)
		must(t, err)
		if want := bearer(fmt.Sprint("token-", i+1)); token != want || len(api.asked) != i+1 {
			t.Fatalf("got %s, want %s", token, want)
		}
		spec := api.asked[i].Spec
		if !slices.Equal(spec.Audiences, []string{"node-healer.csi-addons.io/" + node}) || *spec.ExpirationSeconds != 600 {
			t.Errorf("asked for %+v", spec)
		}
		if b := spec.BoundObjectRef; b == nil || b.Kind != "Pod" || b.Name != "pod" || b.UID != "pod-uid" {
			t.Errorf("bound to %+v", b)
		}
	}
}

// TestTokenIsKeptForHalfItsLife, and not longer, also where the node is gone.
func TestTokenIsKeptForHalfItsLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &tokenAPI{}
		made := api.gateways()
		for _, step := range []struct {
			wait time.Duration
			want bearer
		}{{0, "token-1"}, {tokenLife/2 - time.Second, "token-1"}, {time.Second, "token-2"}} {
			time.Sleep(step.wait)
			if token, err := made.makeToken(t.Context(), "node-1"); err != nil || token != step.want {
				t.Errorf("after %s: %s, %v, want %s", step.wait, token, err, step.want)
			}
		}
		time.Sleep(tokenLife / 2)
		_, err := made.makeToken(t.Context(), "node-2")
		must(t, err)
		if made.tokens.Len() != 1 {
			t.Errorf("kept are %+v", made.tokens)
		}
	})
}

func TestTokenThatCannotBeMade(t *testing.T) {
	api := &tokenAPI{err: errors.New("forbidden")}
	made := api.gateways()
	for range 2 {
		if token, err := made.makeToken(t.Context(), "node-1"); err == nil || token != "" {
			t.Errorf("got %s, %v", token, err)
		}
	}
	if len(api.asked) != 2 {
		t.Errorf("asked %d times", len(api.asked))
	}
}
