package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/config"
)

// healthTimeout bounds a question; the program's own checks take 2 s at most.
const healthTimeout = 5 * time.Second

// HealthCommand returns a command that asks the program on this machine, at its address
// for operators, whether it is ready. It is for containers, which have no other program
// that could ask. address returns that address from the configuration.
func HealthCommand(needs config.Need, address func(*config.Config) string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "health", Short: "Ask the program that runs here whether it is ready", Args: cobra.NoArgs,
		Long: "Ask the program that runs on this machine with the same configuration whether it is ready, and print its\n" +
			"answer. Exit codes: 0 ready or degraded, 5 not ready or no answer.",
	}
	ConfigFlags(cmd, needs, func(cmd *cobra.Command, c *config.Config) error {
		answer, err := askHealth(cmd.Context(), c, address(c))
		fmt.Fprint(cmd.OutOrStdout(), answer)
		return err
	})
	return cmd
}

// askHealth returns the answer of /readyz, and an error unless it says ready.
func askHealth(ctx context.Context, c *config.Config, address string) (string, error) {
	if address == "" {
		return "", Usagef("the configuration has no address for operators")
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	scheme, transport := "http", &http.Transport{}
	if c.Ops.TLS.CertFile != "" {
		scheme, transport.TLSClientConfig = "https", pinned(c.Ops.TLS.CertFile, c.Ops.TLS.KeyFile)
	}
	url := scheme + "://" + local(address) + "/readyz"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	if c.Ops.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Ops.Token)
	}
	return ready(&http.Client{Transport: transport}, req)
}

func ready(client *http.Client, req *http.Request) (string, error) {
	res, err := client.Do(req)
	if err != nil {
		return "", &Error{Code: Unavailable, Err: err}
	}
	defer res.Body.Close()                                    //nolint:errcheck // it was read
	text, err := io.ReadAll(io.LimitReader(res.Body, 64<<10)) // a line for each part
	switch {
	case err != nil:
		return "", &Error{Code: Unavailable, Err: err}
	case res.StatusCode != http.StatusOK:
		return "", &Error{Code: Unavailable, Err: fmt.Errorf("%s answers %d: %s", req.URL, res.StatusCode, strings.TrimSpace(string(text)))}
	}
	return string(text), nil
}

// local returns where a program on this machine is reached that listens on address.
func local(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address // the configuration was validated
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}

// pinned returns a configuration of TLS that accepts the certificate in the file and no
// other: the program is asked by an address of this machine, for which no certificate is made.
func pinned(certFile, keyFile string) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection compares the whole certificate
		VerifyConnection: func(state tls.ConnectionState) error {
			own, err := tls.LoadX509KeyPair(certFile, keyFile)
			if err != nil {
				return fmt.Errorf("ops.tls.cert_file: %w", err)
			}
			if !bytes.Equal(own.Certificate[0], state.PeerCertificates[0].Raw) {
				return errors.New("the server's certificate is not the one in ops.tls.cert_file")
			}
			return nil
		},
	}
}
