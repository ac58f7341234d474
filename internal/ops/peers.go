package ops

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"maps"
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

// peers tells with whom the daemons of each connection are connected by TCP. The sockets of a network
// namespace are read once for all daemons in it, as the kernel goes through its table of all namespaces
// for each reader: 5 ms and more. No namespace is entered. One may have any number of sockets: where there
// are more than can be read in time nothing is told. The time is that of one process, for all namespaces:
// their order is random, so that none with many sockets always keeps those of others from being told.
func (s *scan) peers(daemons []connections) map[uint64][]facts.Peer {
	byNetwork := map[string][]connections{}
	for _, d := range daemons {
		if len(d.sockets) == 0 {
			continue
		}
		var network string
		err := s.proc.inThread(d.by.PID, func(dir string) (err error) {
			network, err = s.proc.readlink(dir + "/ns/net")
			return err
		})
		if err == nil { // else it has ended
			byNetwork[network] = append(byNetwork[network], d)
		}
	}
	found := map[uint64][]facts.Peer{}
	reads := &scan{proc: s.proc, end: time.Now().Add(min(itemTimeout, time.Until(s.end)))}
	each(reads, slices.Collect(maps.Values(byNetwork)), s.peersIn, func(in []connections, of map[uint64]facts.Peer, _ bool) {
		for _, d := range in {
			for _, socket := range d.sockets {
				if p, connected := of[socket]; connected {
					found[d.by.Connection] = append(found[d.by.Connection], p)
				}
			}
		}
	})
	for connection, all := range found {
		found[connection] = named(all)
	}
	return found
}

// named returns the peers that are named.
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

// peersIn returns the peers of sockets of daemons in one network namespace. Where the number of the
// first daemon is another process's by now none is found: that has none of these sockets, or is in the
// same namespace.
func (s *scan) peersIn(daemons []connections) (found map[uint64]facts.Peer) {
	end := time.Now().Add(itemTimeout)
	open := map[uint64]bool{}
	for _, d := range daemons {
		for _, socket := range d.sockets {
			open[socket] = true
		}
	}
	err := s.proc.inThread(daemons[0].by.PID, func(dir string) error {
		found = map[uint64]facts.Peer{}
		for _, table := range []string{"/net/tcp", "/net/tcp6"} {
			err := s.readPeers(dir+table, open, end, found)
			if err != nil && (!errors.Is(err, unix.ENOENT) || table == "/net/tcp") { // a kernel may have no IPv6
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil
	}
	return found
}

// readPeers adds with whom the open sockets are connected, or begin to be, that accepted no
// connection themselves. proc_net_tcp has the listening sockets first, and ends each line with more:
//
//	  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
//	   3: 0100007F:A2C6 0500000A:01BB 01 00000012:00000000 01:00000014 00000003     0        0 4711 ...
//	(0)   (1)           (2)           (3)(4)               (5)         (6)          (7)      (8)(9)
func (s *scan) readPeers(file string, open map[uint64]bool, end time.Time, found map[uint64]facts.Peer) error {
	const established, connecting, listens = "01", "02", "0A"
	fd, err := s.proc.open(file)
	if err != nil {
		return err
	}
	table := os.NewFile(uintptr(fd), file)
	defer table.Close()
	listening := map[string]bool{}
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		if time.Now().After(end) {
			return errTooManyFiles
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
		case (state == established || state == connecting) && open[socket] && !listening[port]:
			retransmits, _ := strconv.ParseUint(fields[6], 16, 16)
			found[socket] = facts.Peer{Address: addressIn(fields[2]), Connected: state == established, Retransmits: int(retransmits)}
		}
	}
	return lines.Err()
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
