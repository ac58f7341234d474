package cluster

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

// TestNamesThatNoObjectHas: a pod may list a claim of any name, and a caller name any
// directory. What cannot be asked for does not exist, and the API is asked for the rest.
func TestNamesThatNoObjectHas(t *testing.T) {
	for _, name := range []string{"a/b", "..", ".", "50%"} {
		t.Run(strings.ReplaceAll(name, "/", " "), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewAPI()
				pv, claim := kubetest.Volume("pv-1")
				_, odd := kubetest.Volume("pv-2")
				odd.Name = name
				api.Put(kubetest.Node(), pv, claim, kubetest.Pod("app", claim), kubetest.Pod("odd", odd))
				c, end := following(t, api)
				defer end()
				if _, err := c.ask(t.Context(), volumeName{directory: name}, "", true); err != nil {
					t.Errorf("a directory: %v", err)
				}
				v, err := c.ask(t.Context(), volumeName{driver: kubetest.DriverName, handle: kubetest.Handle}, "", true)
				if err != nil || v.unavailable != nil || len(v.volumes) != 1 || len(v.pods) != 1 {
					t.Errorf("%+v, %v", v, err)
				}
			})
		})
	}
}
