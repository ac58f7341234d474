package ops

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// PeersQuery asks with whom processes are connected by TCP.
type PeersQuery struct {
	Processes []facts.FUSEDaemon
	// Budget bounds the time.
	Budget time.Duration
}

// maxPeers is how many peers are named, the most silent ones first.
const maxPeers = 4

// peers reads the sockets of the network namespace of each process, and enters none. A process may have
// any number of sockets: of one that has more than can be read in time nothing is told.
func peers(q PeersQuery) (found []facts.Peer, err error) {
	proc, err := openProcfs()
	if err != nil {
		return nil, err
	}
	defer proc.close()
	s := &scan{proc: proc, end: time.Now().Add(q.Budget)}
	each(s, q.Processes, s.peersOf, func(_ facts.FUSEDaemon, of []facts.Peer, _ bool) { found = append(found, of...) })
	slices.SortFunc(found, func(a, b facts.Peer) int {
		return cmp.Or(cmp.Compare(b.Retransmits, a.Retransmits), strings.Compare(a.Address, b.Address))
	})
	var named []facts.Peer
	for _, p := range found {
		if len(named) < maxPeers && !slices.ContainsFunc(named, func(n facts.Peer) bool { return n.Address == p.Address }) {
			named = append(named, p)
		}
	}
	return named, nil
}

// peersOf returns nothing where the number of the process is another one's by now.
func (s *scan) peersOf(d facts.FUSEDaemon) (found []facts.Peer) {
	end := time.Now().Add(itemTimeout)
	err := s.proc.inThread(d.PID, func(dir string) error {
		open := map[string]bool{}
		err := s.eachDescriptor(dir, end, func(fd string) error {
			link, err := s.proc.readlink(dir + "/fd/" + fd)
			if strings.HasPrefix(link, "socket:[") { // the paths of files may be long, and many
				open[link] = true
			}
			return err
		})
		if err != nil {
			return err
		}
		found = nil
		for _, table := range []string{"/net/tcp", "/net/tcp6"} {
			some, err := s.peersIn(dir+table, open, end)
			if err != nil && (!errors.Is(err, unix.ENOENT) || table == "/net/tcp") { // a kernel may have no IPv6
				return err
			}
			found = append(found, some...)
		}
		return nil
	})
	if _, _, started, statErr := s.stat(strconv.Itoa(d.PID)); err != nil || statErr != nil || started != d.Started {
		return nil
	}
	return found
}

// peersIn returns with whom those of the sockets are connected, or begin to be, that accepted no
// connection themselves. proc_net_tcp has the listening sockets first, and ends each line with more:
//
//	  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
//	   3: 0100007F:A2C6 0500000A:01BB 01 00000012:00000000 01:00000014 00000003     0        0 4711 ...
//	(0)   (1)           (2)           (3)(4)               (5)         (6)          (7)      (8)(9)
func (s *scan) peersIn(file string, open map[string]bool, end time.Time) (found []facts.Peer, err error) {
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
		switch state := fields[3]; {
		case state == listens:
			listening[port] = true
		case (state == established || state == connecting) && open["socket:["+fields[9]+"]"] && !listening[port]:
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
