package why

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/procfs"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/csi-addons/node-healer/pkg/facts/layout"
)

// Each pod's user may call a process mount.
func TestMayMount(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, which may mount")
	}
	for with, want := range map[string]bool{
		"":                                     true,
		"setpriv --bounding-set=-sys_admin":    false,
		"setpriv --reuid=65534 --clear-groups": false,
		"unshare --user --map-root-user":       false,
	} {
		cmd := exec.Command("sh", "-c", "exec "+with+" sh -c 'echo; read x'")
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_, _ = stdout.Read(make([]byte, 1)) // it is who it will be
		process, err := procfs.NewProc(cmd.Process.Pid)
		if got := mayMount(process); got != want || err != nil {
			t.Errorf("%q may mount: %t, %v", with, got, err)
		}
		_ = stdin.Close()
		_ = cmd.Wait()
	}
}

// Any user may call a process mount, and give it megabytes of arguments.
func TestLastPath(t *testing.T) {
	for _, c := range []struct {
		arguments []string
		want      string
	}{
		{[]string{"a", "/the/last one"}, "/the/last one"},
		{[]string{"//server/share", "/dir", "-o", "username=u,password=p"}, "/dir"},
		{[]string{"//server/share", "/dir", "-o", "/p"}, "/dir"},
		{[]string{"//server/share", "/dir", "-no", "/p"}, "/dir"},
		{[]string{"//server/share", "/dir", "--options", "/p"}, "/dir"},
		{[]string{"//u:p@server/share", "-oro", "/dir"}, "/dir"},
		{[]string{"//u:p@server/share", "--options=ro", "/dir"}, "/dir"},
		{[]string{"--target", "/dir", "--source", "//u:p@server/share"}, "/dir"},
		{[]string{"-ocredentials=/p", "host:/share", "-l", "/dir"}, "/dir"},
		{[]string{strings.Repeat("x", 100_000), "/the/last one"}, ""},
	} {
		cmd := exec.Command("sh", append([]string{"-c", "echo; read x; :", "mount"}, c.arguments...)...)
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_, _ = stdout.Read(make([]byte, 1)) // before it runs it has no arguments
		got, err := lastPath(cmd.Process.Pid)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%.40q: %.40q, %v", c.arguments, got, err)
		}
		_ = stdin.Close()
		_ = cmd.Wait()
	}
}

// Kubelet's root may be a symbolic link, which the mount table does not have: what is mounted there
// is in use all the same.
func TestPodDirectoriesBehindLink(t *testing.T) {
	link := filepath.Join(t.TempDir(), "pods")
	if err := os.Symlink("/dev", link); err != nil { // where a machine has mounts
		t.Fatal(err)
	}
	want, err := podDirectories("/dev")
	if err != nil {
		t.Fatal(err)
	}
	got, err := podDirectories(link)
	if err != nil || !reflect.DeepEqual(got, want) || len(got["pts"]) == 0 {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

// A driver's directory may have another name than the driver, and kubelet's any.
func TestDriverThatListensElsewhere(t *testing.T) {
	kubelet := layout.Kubelet{Root: t.TempDir() + "/%?#"}
	q := driverQuery{kubelet, "d.example.com"}
	elsewhere := filepath.Join(kubelet.Root, "plugins/d/csi.sock")
	for _, dir := range []string{kubelet.Registrations(), filepath.Dir(elsewhere)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	says := func(want string, failed bool) {
		t.Helper()
		silent, err := probe(q)
		if (err != nil) != failed || !strings.HasPrefix(silent, want) || (silent == "") != (want == "") {
			t.Errorf("%q, %v; want %q", silent, err, want)
		}
	}
	says("", true)
	var info []byte
	for i, field := range []string{"CSIPlugin", q.Driver, elsewhere} {
		info = protowire.AppendString(protowire.AppendTag(info, protowire.Number(i+1), protowire.BytesType), field)
	}
	answers(t, kubelet.Registration(q.Driver), info)
	says("at "+elsewhere+": ", false)
	answers(t, elsewhere, nil)
	says("", false)
	q.Driver = "other.example.com"
	answers(t, kubelet.Registration(q.Driver), info)
	says("", true)
}

// answers has a server at a socket answer every call with a message.
func answers(t *testing.T, socket string, message []byte) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		answer := new(emptypb.Empty)
		answer.ProtoReflect().SetUnknown(message)
		return stream.SendMsg(answer)
	}))
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
}
