package integration

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// TestBlankDisk leaves a driver, which may be told to stage anew, a blank disk: at the
// first call to stage the volume it would make a filesystem there, and with that end every way to
// save the files. Nothing of ours makes that call, or has anybody else write there.
func TestBlankDisk(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, v *harness.Volume){
		"mounted":   func(*testing.T, *harness.Volume) {},
		"no target": func(_ *testing.T, v *harness.Volume) { v.Unpublish() },
		"bare": func(t *testing.T, v *harness.Volume) {
			v.Unpublish()
			harness.Must(t, unix.Unmount(v.Staging, 0))
		},
	} {
		for _, order := range []string{"unmount-first", "stage-first"} {
			t.Run(name+" "+strings.TrimSuffix(order, "-first"), func(t *testing.T) {
				n, d := restaging(t, order, csidriver.Mode{Formats: true})
				v := d.NewDisk("v")
				n.Expect("healthy", d.Request(v))
				harness.Must(t, d.Forget(v.ID))

				shutdown(t, v.Staging) // what is mounted writes nothing any more
				leave(t, v)
				image := d.Image(v.ID)
				blank := erase(t, image)
				for range 3 {
					n.Expect("abnormal", d.Request(v))
				}

				if _, err := d.LastStage(v.ID); err == nil {
					t.Error("the driver was told to stage the volume")
				}
				if now, err := os.ReadFile(image); err != nil || !bytes.Equal(now, blank) {
					t.Errorf("the disk was written to: %v", err)
				}
				if name == "bare" { // it is such a driver
					d.Call(d.Stages(v))
					if now, err := os.ReadFile(image); err != nil || bytes.Equal(now, blank) {
						t.Errorf("kubelet's call made no filesystem: %v", err)
					}
				}
			})
		}
	}
}

// erase fills a disk with zeros, and returns them.
func erase(t *testing.T, image string) []byte {
	t.Helper()
	info, err := os.Stat(image)
	harness.Must(t, err)
	zeros := make([]byte, info.Size())
	disk, err := os.OpenFile(image, os.O_WRONLY, 0)
	harness.Must(t, err)
	defer disk.Close()
	_, err = disk.Write(zeros)
	harness.Must(t, err)
	return zeros
}
