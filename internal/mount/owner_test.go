package mount

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

func TestInodeOfANamespace(t *testing.T) {
	for link, want := range map[string]uint64{"mnt:[4026531841]": 4026531841, "mnt:[]": 0, "": 0, "user:[4026531837]": 0, "mnt:[1]x": 0} {
		if got, err := InodeOf(link); got != want || (err != nil) != (want == 0) {
			t.Errorf("%s: %s, %v", link, strconv.FormatUint(got, 10), err)
		}
	}
}

// A process that has no descriptor left learns nothing about a namespace.
func TestOwnerWithoutDescriptors(t *testing.T) {
	own, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	owner, err := OwnOwner()
	if err != nil {
		t.Fatal(err)
	}
	if owned, err := owner.Owns(int(own.Fd())); !owned || err != nil {
		t.Errorf("our own: %v, %v", owned, err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := unix.Rlimit{Cur: 0, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	_, err = owner.Owns(int(own.Fd()))
	if restoreErr := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); restoreErr != nil {
		t.Fatal(restoreErr)
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("without descriptors: %v", err)
	}
}
