// node-healer-controller runs VolumeHealJobs: it has the nodes check or heal the volume
// of a claim. See docs/controller.md.
package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csi-addons/node-healer/internal/command"
	"github.com/csi-addons/node-healer/internal/controller"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
)

// version is set by the linker.
var version = "unknown"

func main() { command.Main("node-healer-controller", version, parse, run) }

// stopTimeout is how long what runs may take to end: less than the pod's grace period.
// Calls are cancelled; the nodes finish what they have begun.
const stopTimeout = 20 * time.Second

// run does what the command line asks for: mostly, to run the controller until ctx ends.
func run(ctx context.Context, cfg config) error {
	ctrl.SetLogger(klog.Background())
	api, err := rest.InClusterConfig()
	if cfg.kubeconfig != "" {
		api, err = clientcmd.BuildConfigFromFlags("", cfg.kubeconfig)
	}
	if err != nil {
		return fmt.Errorf("find the Kubernetes API: %w", err)
	}
	api.UserAgent = "node-healer-controller/" + version
	api.QPS = -1 // --max-calls bounds what is asked at once
	api.Wrap(controller.BoundPages)
	manager, err := newManager(api, cfg)
	if err != nil {
		return err
	}
	cfg.Reader, cfg.Writer = manager.GetAPIReader(), manager.GetClient()
	cfg.Events, cfg.Metrics = manager.GetEventRecorder(controller.Name), metrics.Registry
	if err := controller.New(cfg.Config).SetUp(manager); err != nil {
		return err
	}
	klog.InfoS("Starting", "namespace", cfg.Gateways.Self.Namespace, "leaderElection", cfg.leaderElect, "version", version)
	return manager.Start(ctx)
}

// newManager returns what reads jobs, elects a leader and serves metrics and health.
func newManager(api *rest.Config, cfg config) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	manager, err := ctrl.NewManager(api, ctrl.Options{
		Scheme: scheme,
		Cache:  cache.Options{DefaultTransform: controller.StripJob},
		Metrics: metricsserver.Options{
			BindAddress: cmp.Or(cfg.metricsAddress, "0"), SecureServing: true, FilterProvider: filters.WithAuthenticationAndAuthorization,
		},
		HealthProbeBindAddress: cfg.healthAddress,
		LeaderElection:         cfg.leaderElect, LeaderElectionID: controller.Name, LeaderElectionNamespace: cfg.Gateways.Self.Namespace,
		// The manager gives the lease back when all calls have ended.
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       ptr.To(stopTimeout),
	})
	if err != nil {
		return nil, fmt.Errorf("set up: %w", err)
	}
	for _, add := range []func(string, healthz.Checker) error{manager.AddHealthzCheck, manager.AddReadyzCheck} {
		if err := add("ping", healthz.Ping); err != nil {
			return nil, err
		}
	}
	return manager, nil
}
