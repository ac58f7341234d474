package kube

import (
	"encoding/base64"
	"testing"
)

func TestSubjectOf(t *testing.T) {
	jwt := func(claims string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
	}
	for token, want := range map[string]string{
		jwt(`{"sub":"system:serviceaccount:ns:name"}`): "system:serviceaccount:ns:name",
		jwt(`{"sub":"someone@example.com"}`):           "", // another issuer's token may name a person
		jwt(`{"sub":1}`):                               "",
		jwt(`nothing`):                                 "",
		"opaque":                                       "",
		"":                                             "",
	} {
		if got := subjectOf(token); got != want {
			t.Errorf("%q: got %q, want %q", token, got, want)
		}
	}
}
