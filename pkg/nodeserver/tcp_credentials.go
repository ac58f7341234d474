package nodeserver

import (
	"errors"
	"net"

	"google.golang.org/grpc/credentials"
	"k8s.io/klog/v2"
)

// tlsCredentials are grpc's, with the visitor in what they say of a caller.
type tlsCredentials struct {
	credentials.TransportCredentials
	// refusals are the handshakes that failed.
	refusals *rationed
}

func newTLSCredentials(t TLS) (tlsCredentials, error) {
	config, err := t.config()
	if err != nil {
		return tlsCredentials{}, err
	}
	return tlsCredentials{credentials.NewTLS(config), &rationed{}}, nil
}

// caller is what is known of who called over TCP; its token says the rest.
type caller struct {
	credentials.TLSInfo
	visitor *visitor
}

// ServerHandshake implements credentials.TransportCredentials. Whoever does not
// speak TLS, with HTTP/2 over it, gets no further.
func (t tlsCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	v, ok := conn.(*visitor)
	if !ok {
		return nil, nil, errors.New("nodeserver: a TCP connection that did not come through the door")
	}
	secure, info, err := t.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		if more, due := t.refusals.due(); due {
			klog.Background().Info("Connection refused", keySource, v.source, keyError, oneLine(err.Error(), logTextBytes), keyMore, more)
		}
		return nil, nil, err
	}
	how, ok := info.(credentials.TLSInfo)
	if !ok {
		_ = conn.Close()
		return nil, nil, errors.New("nodeserver: TLS credentials said nothing of TLS")
	}
	v.secured()
	return secure, caller{how, v}, nil
}

// Clone implements credentials.TransportCredentials.
func (t tlsCredentials) Clone() credentials.TransportCredentials {
	return tlsCredentials{t.TransportCredentials.Clone(), t.refusals}
}
