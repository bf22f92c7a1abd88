package main

import (
	"fmt"
	"net"
	"os"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/config"
)

// useConfigured takes the address of the taskd that runs on this machine with the configuration in
// PERCEPTOR_CONFIG and the environment, if they say where it listens. A configuration that cannot
// be read, perhaps because only the programs may, leaves the default and says so.
func (c *ctl) useConfigured(cmd *cobra.Command) error {
	file := os.Getenv(config.FileVariable)
	if file == "" && os.Getenv(addressVariable) == "" {
		return nil
	}
	loaded, err := config.Load(config.Sources{File: file})
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "the address is %s: that of taskd cannot be read: %v\n", c.address, err)
		return nil
	}
	if address := reached(loaded.Taskd.GRPCAddr); address != "" && address != reached(defaultGRPCAddr) {
		c.address, c.addressFrom = address, "taskd.grpc_addr"
		c.tls = c.tls || loaded.Taskd.TLS.CertFile != ""
	}
	return nil
}

const (
	addressVariable = "PERCEPTOR_TASKD_GRPC_ADDR"
	defaultGRPCAddr = "localhost:7070"
)

// reached returns how a program on this machine reaches one that listens on an address; "" for one
// that is not an address.
func reached(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && (ip.IsUnspecified() || ip.IsLoopback()) {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}
