package chart

import (
	"encoding/json"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/strvals"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
)

// Each value can be changed, and shows where it should: in the object of that name and
// in no other.
func TestEachValueIsRendered(t *testing.T) {
	const (
		server  = "DaemonSet/node-healer"
		gateway = "DaemonSet/node-healer-gateway"
	)
	both := []string{server, gateway}
	for set, test := range map[string]struct {
		in    []string
		shows string
	}{
		"image.repository=mirror.example/healer":    {both, `"image":"mirror.example/healer:v0.1.0"`},
		"image.tag=v9":                              {both, `"image":"ghcr.io/csi-addons/node-healer:v9"`},
		"image.pullPolicy=Always":                   {both, `"imagePullPolicy":"Always"`},
		"imagePullSecrets[0].name=registry":         {both, `"imagePullSecrets":[{"name":"registry"}]`},
		"settings.mode=check":                       {[]string{"ConfigMap/node-healer"}, `"mode":"check"`},
		"settings.driver-namespaces=[]":             {[]string{"ConfigMap/node-healer"}, `"driver-namespaces":"[]"`},
		"server.loop=heal":                          {[]string{server}, `"--loop=heal"`},
		"server.verbosity=4":                        {[]string{server}, `"-v=4"`},
		"server.extraArgs[0]=--probe-timeout=9s":    {[]string{server}, `"--probe-timeout=9s"]`},
		"server.kubeletRoot=/data/kubelet":          {[]string{server}, `"--kubelet-root=/data/kubelet"`},
		"server.nodeSelector.storage=yes":           {[]string{server}, `"storage":"yes"`},
		"server.tolerations[0].key=disk":            {[]string{server}, `"key":"disk"`},
		"server.priorityClassName=mine":             {[]string{server}, `"priorityClassName":"mine"`},
		"server.maxUnavailable=3":                   {[]string{server}, `"maxUnavailable":3`},
		"server.resources.limits.memory=1Gi":        {[]string{server}, `"memory":"1Gi"`},
		"gateway.nodeCondition=true":                {[]string{gateway}, `"--node-condition"`},
		"gateway.verbosity=4":                       {[]string{gateway}, `"-v=4"`},
		"gateway.extraArgs[0]=--register-as=driver": {[]string{gateway}, `"--register-as=driver"]`},
		"gateway.nodeSelector.storage=yes":          {[]string{gateway}, `"storage":"yes"`},
		"gateway.tolerations[0].key=disk":           {[]string{gateway}, `"key":"disk"`},
		"gateway.priorityClassName=mine":            {[]string{gateway}, `"priorityClassName":"mine"`},
		"gateway.maxUnavailable=25%":                {[]string{gateway}, `"maxUnavailable":"25%"`},
		"gateway.seLinuxOptions.type=spc_t":         {[]string{gateway}, `"seLinuxOptions":{"type":"spc_t"}`},
		"gateway.resources.limits.memory=1Gi":       {[]string{gateway}, `"memory":"1Gi"`},
	} {
		t.Run(set, func(t *testing.T) {
			changed := mustRender(t, parse(t, set))
			want := map[string]bool{}
			for _, key := range test.in {
				want[key] = true
			}
			for key, object := range changed {
				if shows := strings.Contains(text(t, object), test.shows); shows != want[key] {
					t.Errorf("%s shows %s: %v", key, test.shows, shows)
				}
			}
			for key, object := range mustRender(t, nil) {
				if !want[key] && text(t, object) != text(t, changed[key]) {
					t.Errorf("%s changed, too", key)
				}
			}
		})
	}
}

// The directory is mounted at the path that the server is told, and the controller asks for paths there.
func TestKubeletRootIsChangedEverywhere(t *testing.T) {
	changed := mustRender(t, parse(t, "server.kubeletRoot=/data/kubelet,controller.enabled=true"))
	if controller := text(t, changed["Deployment/node-healer-controller"]); !strings.Contains(controller, `"--kubelet-root=/data/kubelet"`) {
		t.Errorf("the controller is not told: %s", controller)
	}
	set := text(t, changed["DaemonSet/node-healer"])
	if strings.Contains(set, "/var/lib/kubelet") || strings.Count(set, "/data/kubelet") != 3 {
		t.Errorf("the flag, the volume and its mount are not all changed: %s", set)
	}
}

// Each setting of docs/policy.md can be a value.
func TestSchemaTakesEachSetting(t *testing.T) {
	for _, key := range clustersettings.Keys {
		text := "text of " + key
		if key == clustersettings.Mode {
			text = clustersettings.ModeHeal
		}
		changed, err := render(t, values{"settings": values{key: text}})
		if err != nil {
			t.Errorf("%s is refused: %v", key, err)
		} else if got := changed["ConfigMap/node-healer"]["data"].(values)[key]; got != text {
			t.Errorf("%s is %v", key, got)
		}
	}
}

func TestSchemaRefuses(t *testing.T) {
	for set, why := range map[string]string{
		"sever.loop=heal":                  "sever",
		"server.lop=heal":                  "lop",
		"server.loop=always":               "loop",
		"server.kubeletRoot=var/lib":       "kubeletRoot",
		"server.maxUnavailable=0":          "maxUnavailable",
		"server.extraArgs[0]=loop":         "extraArgs",
		"server.resources.limit.memory=1":  "limit",
		"settings.mode=on":                 "mode",
		"settings.modes=heal":              "modes",
		"gateway.enabled=1":                "enabled",
		"gateway.loop=heal":                "loop",
		"image.tag=1":                      "tag",
		"image.pullPolicy=Sometimes":       "pullPolicy",
		"imagePullSecrets[0]=registry":     "imagePullSecrets",
		"monitoring.enabled=yes":           "enabled",
		"server.tolerations[0].operator=x": "operator",
	} {
		t.Run(set, func(t *testing.T) {
			if _, err := render(t, parse(t, set)); err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("rendered, or not refused for %s: %v", why, err)
			}
		})
	}
}

// Without the gateway there are no metrics to read.
func TestOperatorNeedsTheGateway(t *testing.T) {
	_, err := render(t, parse(t, "gateway.enabled=false,monitoring.operator=true"))
	if err == nil || !strings.Contains(err.Error(), "needs gateway.enabled") {
		t.Errorf("not refused: %v", err)
	}
}

// parse reads values as `helm --set` does.
func parse(t *testing.T, set string) values {
	t.Helper()
	v, err := strvals.Parse(set)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func text(t *testing.T, object values) string {
	t.Helper()
	raw, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// The gateways may write to their Nodes' status only where that was asked for.
func TestNodesStatusIsWrittenOnlyForTheCondition(t *testing.T) {
	for set, want := range map[string]bool{"gateway.nodeCondition=false": false, "gateway.nodeCondition=true": true, "gateway.extraArgs[0]=--node-condition": true, "gateway.extraArgs[0]=--node-condition=true": true} {
		var may []string
		for key, object := range mustRender(t, parse(t, set)) {
			if strings.HasPrefix(key, "ClusterRole/node-healer-gateway") && strings.Contains(text(t, object), `"nodes`) {
				may = append(may, key)
			}
		}
		if (len(may) > 0) != want {
			t.Errorf("%s: %v", set, may)
		}
	}
}
