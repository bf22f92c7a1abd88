package config

import (
	"fmt"
	"net"
)

// OpenLinks names the links to and from other machines that others could read, change or
// pretend to be an end of, one sentence each, with key, value and what to set. needs says
// which addresses the program listens on. The links to Postgres are not among them: their
// TLS is a part of the connection string, which package store reads.
func (c *Config) OpenLinks(needs Need) []string {
	var l links
	for _, a := range c.Kafka.Brokers {
		l.check(c.Kafka.TLS.Enabled, "kafka.brokers", a, noTLS, "set kafka.tls.enabled: true")
	}
	for _, a := range c.ZooKeeper.Servers {
		l.check(c.ZooKeeper.TLS.Enabled, "zookeeper.servers", a, noTLS, "set zookeeper.tls.enabled: true")
		l.check(c.ZooKeeper.User != "", "zookeeper.servers", a, "anyone may change who owns which shard", "set zookeeper.user and zookeeper.password")
	}
	if needs&(ListensTaskd|ListensDispatcher) != 0 {
		c.Tracing.link(&l)
	}
	if needs&ListensTaskd != 0 {
		l.check(c.Taskd.TLS.CertFile != "", "taskd.grpc_addr", c.Taskd.GRPCAddr, noTLS, "set taskd.tls.cert_file and taskd.tls.key_file")
		l.check(c.Taskd.TLS.CertFile != "", "taskd.http_addr", c.Taskd.HTTPAddr, noTLS, "set taskd.tls.cert_file and taskd.tls.key_file")
		c.Ops.links(&l, "taskd.ops_addr", c.Taskd.OpsAddr)
		c.Taskd.OIDC.link(&l)
	}
	if needs&ListensDispatcher != 0 {
		c.Ops.links(&l, "dispatcher.ops_addr", c.Dispatcher.OpsAddr)
	}
	return l
}

func (c *Ops) links(l *links, key, address string) {
	l.check(c.TLS.CertFile != "", key, address, noTLS, "set ops.tls.cert_file and ops.tls.key_file")
	l.check(c.Token != "", key, address, "anyone may read the names of tenants", "set ops.token")
}

const noTLS = "the link has no TLS"

// links collects open links.
type links []string

// check adds the link to or from an address unless it is closed or within this machine.
func (l *links) check(closed bool, key, address, risk, cure string) {
	if !closed && address != "" && !IsLoopback(address) {
		*l = append(*l, fmt.Sprintf("%s: %q is not on loopback, and %s: %s", key, address, risk, cure))
	}
}

// IsLoopback reports whether an address, host:port, is one of this machine's loopback. A
// name other than localhost is not: others may decide what it stands for.
func IsLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
