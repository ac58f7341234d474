package harness

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// lastLine begins the last line of the list.
const lastLine = "\n\t\tnetwork.New("

// BuildWithProvider builds a server with one more provider than the source has, as its
// vendor would: a package, and a line in the list. It returns the
// binary's path.
func BuildWithProvider(t testing.TB, pkg, line string) string {
	t.Helper()
	NeedsHost(t, "Go")
	list, err := filepath.Abs("../../pkg/healer/provider/all.go")
	Must(t, err)
	source, err := os.ReadFile(list)
	Must(t, err)
	imports, rest, hasImports := strings.Cut(string(source), "import (\n")
	before, after, hasList := strings.Cut(rest, lastLine)
	if !hasImports || !hasList || !strings.Contains(before, "all := []healer.Provider{") {
		t.Fatalf("%s does not begin with the list", list)
	}
	dir := t.TempDir()
	copied := filepath.Join(dir, "all.go")
	text := fmt.Sprintf("%simport (\n\t%q\n%s\n\t\t%s%s%s", imports, pkg, before, line, lastLine, after)
	Must(t, os.WriteFile(copied, []byte(text), 0o600))
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {list: copied}})
	Must(t, err)
	file := filepath.Join(dir, "overlay.json")
	Must(t, os.WriteFile(file, overlay, 0o600))
	binary := filepath.Join(bin, "node-healer-"+filepath.Base(pkg)) // beside its worker
	Must(t, buildAs(binary, "node-healer", false, append([]string{"-overlay=" + file}, released...)))
	return binary
}
