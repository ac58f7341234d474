package worker

import (
	"slices"
	"testing"
)

func TestParseStack(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"empty":      {"", nil},
		"no newline": {"[<0>] pipe_read+0x1/0x2", []string{"pipe_read"}},
		"a FUSE request, by its module": {
			"[<0>] request_wait_answer+0x12d/0x200 [fuse]\n[<0>] fuse_simple_request+0x1b1/0x300 [fuse]\n[<0>] vfs_statx+0x79/0x150\n" +
				"[<0>] do_syscall_64+0x5b/0x110\n[<0>] entry_SYSCALL_64_after_hwframe+0x76/0x7e\n",
			[]string{"request_wait_answer", "fuse_simple_request", "vfs_statx"},
		},
		"ARM":              {"[<0>] percpu_rwsem_wait+0x98/0x108\n[<0>] el0_svc+0x38/0xf0\n[<0>] el0t_64_sync+0x198/0x19c\n", []string{"percpu_rwsem_wait"}},
		"with addresses":   {"[<ffffffff8123abcd>] __sb_start_write+0x12/0x40\n", []string{"__sb_start_write"}},
		"optimized parts":  {"[<0>] wait_on_bit.isra.0+0x12/0x40\n", []string{"wait_on_bit.isra.0"}},
		"only the way in":  {"[<0>] do_syscall_64+0x5b/0x110\n[<0>] entry_SYSCALL_64_after_hwframe+0x76/0x7e\n", nil},
		"no offset":        {"[<0>] 0xffffffffffffffff\n", []string{"0xffffffffffffffff"}},
		"something else":   {"hello\n\n[<0>] \n", nil},
		"blanks around it": {"  [<0>] pipe_read+0x1/0x2  \n", []string{"pipe_read"}},
	} {
		if got := parseStack(tc.text); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
