package cluster

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/csi-addons/node-healer/test/harness"
)

// TokenOption makes a token differ from what a pod gets by default.
type TokenOption func(*wanted)

type wanted struct {
	spec authenticationv1.TokenRequestSpec
	ends time.Duration
}

// ForAudience asks for a token for others than the API server.
func ForAudience(audiences ...string) TokenOption {
	return func(w *wanted) { w.spec.Audiences = audiences }
}

// BoundTo binds the token to a pod, as kubelet does: it names the pod and its
// node, and ends with it.
func BoundTo(pod *corev1.Pod) TokenOption {
	return func(w *wanted) {
		w.spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	}
}

// Ending makes the token end after a time, which may be negative. The API gives
// none for less than ten minutes, and accepts none that ended more than a
// minute ago: a token that ended lately is still good.
func Ending(after time.Duration) TokenOption {
	return func(w *wanted) { w.ends = after }
}

// APIAudience is what a token is for by default: the API server.
func (c *Cluster) APIAudience(tb testing.TB) string {
	tb.Helper()
	c.Account(tb, AddonsNamespace, AddonsAccount)
	return c.Kubectl(tb, "create", "token", AddonsAccount, "--namespace="+AddonsNamespace, "--output=jsonpath={.spec.audiences[0]}")
}

// Token returns a token of a service account, which has to be there: see Account.
func (c *Cluster) Token(tb testing.TB, namespace, account string, options ...TokenOption) string {
	tb.Helper()
	var w wanted
	for _, option := range options {
		option(&w)
	}
	made, err := c.admin.CoreV1().ServiceAccounts(namespace).CreateToken(tb.Context(), account,
		&authenticationv1.TokenRequest{Spec: w.spec}, metav1.CreateOptions{})
	harness.Must(tb, err)
	if w.ends == 0 {
		return made.Status.Token
	}
	return c.resign(tb, made.Status.Token, time.Now().Add(w.ends))
}

// resign returns the same token with another end, and with the same key.
func (c *Cluster) resign(tb testing.TB, token string, end time.Time) string {
	tb.Helper()
	parts := strings.Split(token, ".")
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	harness.Must(tb, err)
	var claims map[string]any
	harness.Must(tb, json.Unmarshal(raw, &claims))
	begin := end.Add(-time.Hour).Unix()
	claims["iat"], claims["nbf"], claims["exp"] = begin, begin, end.Unix()
	raw, err = json.Marshal(claims)
	harness.Must(tb, err)
	text := parts[0] + "." + base64.RawURLEncoding.EncodeToString(raw)
	sum := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, c.signer, crypto.SHA256, sum[:])
	harness.Must(tb, err)
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// Kubeconfig writes the configuration of a client that is a service account,
// and returns its path.
func (c *Cluster) Kubeconfig(tb testing.TB, namespace, account string, options ...TokenOption) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	harness.Must(tb, c.writeConfig(path, &clientcmdapi.AuthInfo{Token: c.Token(tb, namespace, account, options...)}))
	return path
}

// writeKubeconfig writes the administrator's, for kubectl.
func (c *Cluster) writeKubeconfig() error {
	return c.writeConfig(c.file(adminConfig), &clientcmdapi.AuthInfo{
		ClientCertificateData: c.config.CertData, ClientKeyData: c.config.KeyData,
	})
}

func (c *Cluster) writeConfig(path string, user *clientcmdapi.AuthInfo) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: c.URL(), CertificateAuthorityData: c.ca}
	config.AuthInfos["test"] = user
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	return clientcmd.WriteToFile(*config, path)
}
