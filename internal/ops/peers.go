package ops

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// maxPeers is how many peers of a connection are named, the most silent ones first.
const maxPeers = 4

// peers tells with whom the daemons of each connection are connected by TCP. No network namespace is
// entered. One may have any number of sockets: where there are more than can be read in time nothing is
// told. The time is that of one process, for all daemons: their order is random, so that none whose
// namespace has many sockets always keeps those of others from being told.
func (s *scan) peers(daemons []connections) map[uint64][]facts.Peer {
	found := map[uint64][]facts.Peer{}
	reads := &scan{proc: s.proc, end: time.Now().Add(min(itemTimeout, time.Until(s.end)))}
	connected := slices.DeleteFunc(slices.Clone(daemons), func(d connections) bool { return len(d.sockets) == 0 })
	rand.Shuffle(len(connected), func(i, j int) { connected[i], connected[j] = connected[j], connected[i] }) //nolint:gosec // an order is no secret
	each(reads, connected, s.peersOf, func(d connections, of []facts.Peer, _ bool) {
		found[d.by.Connection] = append(found[d.by.Connection], of...)
	})
	for connection, all := range found {
		if found[connection] = named(all); len(all) == 0 {
			delete(found, connection)
		}
	}
	return found
}

func named(all []facts.Peer) (named []facts.Peer) {
	slices.SortFunc(all, func(a, b facts.Peer) int {
		return cmp.Or(cmp.Compare(b.Retransmits, a.Retransmits), strings.Compare(a.Address, b.Address))
	})
	for _, p := range all {
		if len(named) < maxPeers && !slices.ContainsFunc(named, func(n facts.Peer) bool { return n.Address == p.Address }) {
			named = append(named, p)
		}
	}
	return named
}

// peersOf returns the peers of a daemon's sockets. Where the daemon's number is another process's by now
// none is found: that has none of these sockets.
func (s *scan) peersOf(d connections) (found []facts.Peer) {
	end := time.Now().Add(itemTimeout)
	err := s.proc.inThread(d.by.PID, func(dir string) error {
		found = nil
		for _, table := range []string{"/net/tcp", "/net/tcp6"} {
			peers, err := s.readPeers(dir+table, d.sockets, end)
			if err != nil && (!errors.Is(err, unix.ENOENT) || table == "/net/tcp") { // a kernel may have no IPv6
				return err
			}
			found = append(found, peers...)
		}
		return nil
	})
	if err != nil {
		return nil
	}
	return found
}

// readPeers returns with whom the open sockets are connected, or begin to be, that accepted no
// connection themselves. proc_net_tcp has the listening sockets first, and ends each line with more:
//
//	  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
//	   3: 0100007F:A2C6 0500000A:01BB 01 00000012:00000000 01:00000014 00000003     0        0 4711 ...
//	(0)   (1)           (2)           (3)(4)               (5)         (6)          (7)      (8)(9)
func (s *scan) readPeers(file string, open []uint64, end time.Time) (found []facts.Peer, err error) {
	const established, connecting, listens = "01", "02", "0A"
	fd, err := s.proc.open(file)
	if err != nil {
		return nil, err
	}
	table := os.NewFile(uintptr(fd), file)
	defer table.Close()
	listening := map[string]bool{}
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		if time.Now().After(end) {
			return nil, errTooManyFiles
		}
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 {
			continue
		}
		_, port, _ := strings.Cut(fields[1], ":")
		socket, _ := strconv.ParseUint(fields[9], 10, 64) // 0, which nobody has open, for the heading
		switch state := fields[3]; {
		case state == listens:
			listening[port] = true
		case (state == established || state == connecting) && slices.Contains(open, socket) && !listening[port]:
			retransmits, _ := strconv.ParseUint(fields[6], 16, 16)
			found = append(found, facts.Peer{Address: addressIn(fields[2]), Connected: state == established, Retransmits: int(retransmits)})
		}
	}
	return found, lines.Err()
}

// addressIn parses 0500000A:01BB, 10.0.0.5:443 on a little-endian machine: each four bytes of the address
// are printed as a number.
func addressIn(text string) string {
	host, port, _ := strings.Cut(text, ":")
	raw, _ := hex.DecodeString(host)
	for word := raw; len(word) >= 4; word = word[4:] {
		binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
	}
	ip, _ := netip.AddrFromSlice(raw)
	number, _ := strconv.ParseUint(port, 16, 16)
	return netip.AddrPortFrom(ip.Unmap(), uint16(number)).String()
}
