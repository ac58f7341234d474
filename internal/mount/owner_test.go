package mount

import (
	"strconv"
	"testing"
)

func TestInodeOfANamespace(t *testing.T) {
	for link, want := range map[string]uint64{"mnt:[4026531841]": 4026531841, "mnt:[]": 0, "": 0, "user:[4026531837]": 0, "mnt:[1]x": 0} {
		if got, err := InodeOf(link); got != want || (err != nil) != (want == 0) {
			t.Errorf("%s: %s, %v", link, strconv.FormatUint(got, 10), err)
		}
	}
}
