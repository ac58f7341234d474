package network

import (
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/netfs"
)

// maxAddresses is how many addresses are asked in one observation. A Ceph cluster of
// which four monitors do not answer has mostly no quorum.
const maxAddresses = 4

// client is how a network filesystem names its servers.
type client struct {
	// port is the one of a server that is named without a port.
	port uint16
	// servers returns what the mount names: a name or an IP address, with or without a
	// port. It returns nil where that is no address of TCP.
	servers func(facts.Mount) []string
}

// clients has each filesystem type of this provider.
var clients = map[string]client{
	"nfs":            {2049, nfsServer},
	"nfs4":           {2049, nfsServer},
	"cifs":           {445, smbServer},
	"smb3":           {445, smbServer},
	"ceph":           {6789, monitors},
	"fuse.glusterfs": {24007, glusterServers},
}

// addresses returns at most maxAddresses addresses, as host:port, of the server that a
// mount names. A part that is no address counts as if it were not there: a source may be
// anything at all.
func addresses(m facts.Mount) []string {
	c := clients[m.FSType]
	if c.servers == nil {
		return nil
	}
	port := c.port
	if p, err := strconv.ParseUint(option(m, "port"), 10, 16); err == nil && p > 0 {
		port = uint16(p)
	}
	var found []string
	for _, server := range c.servers(m) {
		a, is := address(server, port)
		if is && !slices.Contains(found, a) && len(found) < maxAddresses {
			found = append(found, a)
		}
	}
	return found
}

// hostName is a name or an IP address. Longer names are too long for a message.
var hostName = regexp.MustCompile(`^[A-Za-z0-9:._%-]{1,128}$`)

// address returns host:port of what a mount names as its server: a name, or an IP
// address, of version 6 also in brackets; each with or without a port.
func address(server string, port uint16) (string, bool) {
	name := server
	if ip := strings.TrimSuffix(strings.TrimPrefix(server, "["), "]"); isIP(ip) {
		name = ip
	} else if before, after, err := net.SplitHostPort(server); err == nil {
		number, err := strconv.ParseUint(after, 10, 16)
		if err != nil || number == 0 {
			return "", false
		}
		name, port = before, uint16(number)
	}
	is := hostName.MatchString(name) && (isIP(name) || !strings.ContainsAny(name, ":%"))
	return net.JoinHostPort(name, strconv.Itoa(int(port))), is
}

func isIP(name string) bool {
	_, err := netip.ParseAddr(name)
	return err == nil
}

// nfsServer returns the address with which the kernel was given the server (nfs(5)): a
// name in the source may resolve to another one by now.
func nfsServer(m facts.Mount) []string {
	switch option(m, "proto") {
	case "", "tcp", "tcp6":
		return resolved(m)
	}
	return nil // rdma, udp
}

func smbServer(m facts.Mount) []string {
	if m.HasSuperOption("rdma") {
		return nil
	}
	return resolved(m)
}

func resolved(m facts.Mount) []string {
	if addr := option(m, "addr"); addr != "" {
		return []string{addr}
	}
	return []string{netfs.Server(m.FSType, m.Source)}
}

// monitors returns those of mon_addr=A/B, or of the source A,B:/PATH (mount.ceph(8)). A
// source of the new syntax names no address.
func monitors(m facts.Mount) []string {
	if list := option(m, "mon_addr"); list != "" {
		return strings.Split(list, "/")
	}
	if strings.Contains(m.Source, "=/") {
		return nil
	}
	return strings.Split(netfs.Server(m.FSType, m.Source), ",")
}

// glusterServers returns A,B of A,B:VOLUME or A,B:/VOLUME (mount.glusterfs(8)).
func glusterServers(m facts.Mount) []string {
	servers, _, _ := strings.Cut(m.Source, ":/")
	if servers == m.Source {
		servers = m.Source[:max(0, strings.LastIndexByte(m.Source, ':'))]
	}
	return strings.Split(servers, ",")
}

// option returns the value of an option of the filesystem.
func option(m facts.Mount, name string) string {
	for _, o := range m.SuperOptions {
		if value, is := strings.CutPrefix(o, name+"="); is {
			return value
		}
	}
	return ""
}
