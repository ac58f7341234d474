package nodeserver

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
)

// certFiles is a certificate in two files, looked at in each handshake. A pair
// that cannot be used, as while it is being written, leaves the one before in
// use.
type certFiles struct {
	cert, key string

	inUse atomic.Pointer[tls.Certificate]
	// mu is for whoever looks at the files. All others go on with what is in
	// use: a disk that hangs must not hold up the handshakes.
	mu sync.Mutex
	// seen is what stood there when the files were read last.
	seen [2]fs.FileInfo
}

func newCertFiles(cert, key string) (*certFiles, error) {
	f := &certFiles{cert: cert, key: key}
	seen, err := f.stat()
	if err != nil {
		return nil, err
	}
	if err := f.read(); err != nil {
		return nil, err
	}
	f.seen = seen
	return f, nil
}

// get is a tls.Config's GetCertificate.
func (f *certFiles) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if f.mu.TryLock() {
		f.look()
		f.mu.Unlock()
	}
	return f.inUse.Load(), nil
}

// look reads the files if they are others than before. What is there is noted
// first: files that change while they are read are read again.
func (f *certFiles) look() {
	seen, err := f.stat()
	if err == nil && sameFile(seen[0], f.seen[0]) && sameFile(seen[1], f.seen[1]) {
		return
	}
	wasThere := f.seen[0] != nil
	f.seen = seen
	if err == nil {
		err = f.read()
	} else if !wasThere {
		return // said already
	}
	if err != nil {
		klog.Background().Error(err, "Certificate not reloaded, the one before stays in use", keyFile, f.cert)
	}
}

// stat gives nothing of either file if one is missing.
func (f *certFiles) stat() (seen [2]fs.FileInfo, err error) {
	for i, path := range []string{f.cert, f.key} {
		if seen[i], err = os.Stat(path); err != nil { //nolint:forbidigo // the server's own file, on nobody's volume
			return [2]fs.FileInfo{}, fmt.Errorf("certificate %s with key %s: %w", f.cert, f.key, err)
		}
	}
	return seen, nil
}

func sameFile(a, b fs.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

func (f *certFiles) read() error {
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return fmt.Errorf("certificate %s with key %s: %w", f.cert, f.key, err)
	}
	if old := f.inUse.Swap(&pair); old == nil || !slices.EqualFunc(old.Certificate, pair.Certificate, bytes.Equal) {
		klog.Background().Info("Certificate loaded", keyFile, f.cert, keyUntil, pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}
