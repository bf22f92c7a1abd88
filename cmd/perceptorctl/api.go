package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/task"
)

// maxAnswerBytes bounds an answer.
const maxAnswerBytes = 320 << 20

// withAPI connects, runs f, each of whose calls has the timeout, and makes its error
// one for people.
func (c *ctl) withAPI(cmd *cobra.Command, f func(ctx context.Context, conn *grpc.ClientConn) error) error {
	if err := c.checkOutput(); err != nil {
		return err
	}
	if err := c.useContext(cmd); err != nil {
		return err
	}
	if err := c.checkAddress(); err != nil {
		return err
	}
	if c.timeout <= 0 { // every call would seem to have no answer, which is worth another try
		return cli.Usagef("--timeout: %s is not above 0", c.timeout)
	}
	secret, err := c.secret()
	if err != nil {
		return err
	}
	creds, err := c.credentials()
	if err != nil {
		return err
	}
	if creds.Info().SecurityProtocol == "insecure" && !c.insecure && slices.ContainsFunc(c.addresses(), elsewhere) {
		return &cli.Error{Code: cli.Usage, Err: fmt.Errorf("--address: %q is not on loopback, and the token would be sent in the clear", c.address), Hint: clearHint}
	}
	conn, err := c.dial(creds)
	if err != nil {
		return cli.Usagef("--address: %q is not host:port: %v", c.address, err)
	}
	defer conn.Close() //nolint:errcheck // nothing depends on it
	ctx := cmd.Context()
	if secret != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+secret)
	}
	if c.inspect != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "perceptor-tenant", c.inspect)
	}
	err = f(ctx, conn)
	if st := status.Convert(err); st.Code() == codes.Internal && strings.HasPrefix(st.Message(), "grpc: error while marshaling") {
		if given := notUTF8(cmd); given != "" {
			return cli.Usagef("%s is not valid UTF-8", given)
		}
	}
	return c.explain(err)
}

// elsewhere reports whether an address is of another machine.
func elsewhere(address string) bool { return !config.IsLoopback(address) }

// notUTF8 names the first flag or argument that the API cannot take because it is not UTF-8, or "". It is asked only
// about a request that could not be encoded, because names of files need not be UTF-8.
func notUTF8(cmd *cobra.Command) (given string) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, v := range values {
			if given == "" && !utf8.ValidString(v) {
				given = fmt.Sprintf("--%s: %q", f.Name, v)
			}
		}
	})
	for _, arg := range cmd.Flags().Args() {
		if given == "" && !utf8.ValidString(arg) {
			given = fmt.Sprintf("%q", arg)
		}
	}
	return given
}

// A service that is asked something and sends nothing for aliveEvery is asked whether it is alive. The connection ends if
// there is no answer within aliveTimeout: a stream, such as that of an export, has no other limit.
const (
	aliveEvery   = 15 * time.Second // servers refuse less than 10 s
	aliveTimeout = 15 * time.Second // a busy machine is no dead one
)

// addresses returns those of the API: several are separated by commas, as in the configuration of a client.
func (c *ctl) addresses() []string {
	list := strings.Split(c.address, ",")
	for i, a := range list {
		list[i] = strings.TrimSpace(a)
	}
	return list
}

// connect returns a connection to the API: to the first of several addresses that answers.
func (c *ctl) connect(creds credentials.TransportCredentials, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	target, options := "dns:///"+c.address, append(options, grpc.WithTransportCredentials(creds))
	if list := c.addresses(); len(list) > 1 {
		fixed := manual.NewBuilderWithScheme("perceptor")
		var state resolver.State
		for _, a := range list {
			host, _, _ := net.SplitHostPort(a) // checkAddress has looked at it
			state.Addresses = append(state.Addresses, resolver.Address{Addr: a, ServerName: host})
		}
		fixed.InitialState(state)
		target, options = "perceptor:///taskd", append(options, grpc.WithResolvers(fixed))
	}
	return grpc.NewClient(target, options...)
}

// dial returns a connection to the API for calls within --timeout.
func (c *ctl) dial(creds credentials.TransportCredentials, extra ...grpc.DialOption) (*grpc.ClientConn, error) {
	return c.connect(creds, append(extra,
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: aliveEvery, Timeout: aliveTimeout}),
		grpc.WithUnaryInterceptor(within(c.timeout)), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)))...)
}

// checkAddress refuses what is not host:port, such as a URL or a host alone.
func (c *ctl) checkAddress() error {
	for _, a := range c.addresses() {
		host, port, err := net.SplitHostPort(a)
		if err != nil || host == "" || port == "" || strings.Contains(a, "/") {
			return &cli.Error{Code: cli.Usage, Err: fmt.Errorf("--address: %q is not host:port", a),
				Hint: "it is the address of the gRPC API, such as localhost:7070, without http://, or several separated by commas"}
		}
	}
	return nil
}

// secret returns the token to call with. It may be empty beside a certificate.
func (c *ctl) secret() (string, error) {
	var secret string
	switch {
	case c.token != "":
		return "", cli.Usagef("--token: a token is not accepted as a flag, because other users can see it: use --token-file or PERCEPTOR_TOKEN")
	case c.tokenFile != "":
		text, err := os.ReadFile(c.tokenFile)
		if err != nil {
			return "", cli.Usagef("--token-file: %v", err)
		}
		secret = strings.TrimSpace(string(text))
	case c.contextToken != "":
		secret = c.contextToken
	default:
		secret = os.Getenv("PERCEPTOR_TOKEN")
	}
	if secret == "" && c.certFile == "" {
		return "", &cli.Error{Code: cli.Usage, Err: errors.New("a token is needed"), Hint: tokenHint}
	}
	if strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", cli.Usagef("the token is malformed: it has spaces, line ends or other characters that no token has")
	}
	return secret, nil
}

// malformedToken reports whether a token has neither the form of one of Perceptor nor that of a JSON Web Token, three parts with
// dots between them. The service tells nobody why it has refused a token, and need not: this command has it.
func malformedToken(secret string) bool {
	parts := strings.Split(secret, ".")
	return !control.HasForm(secret) && (len(parts) != 3 || slices.Contains(parts, ""))
}

// hasToken reports whether calls have a token: a certificate may stand in for it.
func (c *ctl) hasToken() bool {
	secret, err := c.secret()
	return err == nil && secret != ""
}

const (
	tokenHint = "set --token-file or PERCEPTOR_TOKEN; to create the first admin token, run perceptorctl token create --admin --direct"
	clearHint = "set --tls or --tls-ca-file; --insecure allows it, for example where a service mesh encrypts"
	scopeHint = "commands about tenants and tokens need an admin token, those about tasks a token of the tenant with the scope for the call; perceptorctl token create --help lists the scopes"
)

func (c *ctl) credentials() (credentials.TransportCredentials, error) {
	conf, err := c.tlsConfig()
	switch {
	case err != nil:
		return nil, err
	case conf == nil:
		return insecure.NewCredentials(), nil
	}
	return credentials.NewTLS(conf), nil
}

// tlsConfig returns nil if the API is called without TLS.
func (c *ctl) tlsConfig() (*tls.Config, error) {
	switch {
	case (c.certFile == "") != (c.keyFile == ""):
		return nil, cli.Usagef("--tls-cert-file and --tls-key-file: only one of them is given")
	case !c.tls && c.caFile == "" && c.certFile == "":
		return nil, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.caFile != "" {
		text, err := os.ReadFile(c.caFile)
		if err != nil {
			return nil, cli.Usagef("--tls-ca-file: %v", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(text) {
			return nil, cli.Usagef("--tls-ca-file: %s holds no certificate", c.caFile)
		}
	}
	if c.certFile != "" {
		pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
		if err != nil {
			return nil, cli.Usagef("--tls-cert-file: %v", err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
}

// explain gives an answer of the API its exit code and a hint.
func (c *ctl) explain(err error) error {
	if err == nil {
		return nil
	}
	var known *cli.Error
	st, ok := status.FromError(err)
	if errors.As(err, &known) || !ok {
		return err
	}
	e := &cli.Error{Code: cli.Failure, Err: errors.New(textOf(st))}
	switch st.Code() {
	case codes.InvalidArgument, codes.OutOfRange:
		e.Code = cli.Usage // whose hint is the help of the command
	case codes.NotFound:
		e.Code = cli.NotFound
	case codes.AlreadyExists, codes.FailedPrecondition, codes.Aborted:
		e.Code = cli.Conflict
	case codes.ResourceExhausted: // and the message says of what
		e.Code = cli.Unavailable
		if delay := retryAfter(err); delay > 0 {
			e.Hint = fmt.Sprintf("the command waits as long as --timeout allows, which is %s", c.timeout)
		}
	case codes.DeadlineExceeded:
		e.Code, e.Hint = cli.Unavailable, fmt.Sprintf("%s did not answer within %s (--timeout); is taskd running there?", c.address, c.timeout)
	case codes.Unavailable:
		e.Code = cli.Unavailable
		switch {
		case len(st.Details()) > 0: // taskd says what does not answer
		case strings.Contains(e.Err.Error(), "looked like an HTTP/1.1 header"):
			e.Err = fmt.Errorf("%s does not answer gRPC", c.address)
			e.Hint = "is it the address of the HTTP API? set --address or PERCEPTOR_ADDRESS to that of the gRPC API (taskd.grpc_addr)"
		case saidNothing(e.Err.Error()):
			e.Err = fmt.Errorf("%s accepts connections and does not answer", c.address)
			e.Hint = "taskd may hang there, or the way back from it is cut; try another one"
		case c.linkHint(e.Err.Error()) != "":
			e.Hint = c.linkHint(e.Err.Error())
		default:
			e.Hint = fmt.Sprintf("is taskd running at %s? set --address or PERCEPTOR_ADDRESS", c.address)
		}
	case codes.Unimplemented:
		e.Hint = fmt.Sprintf("the taskd at %s is of another release, or has no such part; this is perceptorctl %s", c.address, cli.Version())
	case codes.Unauthenticated:
		e.Hint = tokenHint
		if reasonOf(err) == task.ReasonTokenRefused && c.hasToken() {
			e.Err = errors.New("the token is unknown, expired or revoked")
			if secret, err := c.secret(); err == nil && malformedToken(secret) {
				e.Err = errors.New("the token is malformed: a part of it is missing, or it is something else")
			}
		}
	case codes.PermissionDenied:
		e.Hint = scopeHint
	}
	return e
}

// saidNothing reports whether an error says that the library closed a connection itself, because nothing came within the
// time of a connection. Somebody who does not agree about TLS would have closed it.
func saidNothing(text string) bool {
	return strings.Contains(text, "error reading server preface") && strings.Contains(text, "use of closed network connection")
}

// linkHint says what to do about a link on which somebody answers who does not agree about TLS, or "".
func (c *ctl) linkHint(text string) string {
	switch {
	case strings.Contains(text, "first record does not look like a TLS handshake"):
		return fmt.Sprintf("what answers at %s has no TLS: is that its address? without TLS leave out --tls, --tls-ca-file and --tls-cert-file", c.address)
	case strings.Contains(text, "certificate is valid for"), strings.Contains(text, "certificate is not valid for"), strings.Contains(text, "cannot validate certificate for"):
		return "set --address to a name that the certificate of taskd has"
	case strings.Contains(text, "signed by unknown authority"):
		return "set --tls-ca-file to the certificate that signs that of taskd"
	case strings.Contains(text, "certificate required"), strings.Contains(text, "bad certificate"):
		return "taskd asks for a certificate: set --tls-cert-file and --tls-key-file"
	case strings.Contains(text, "error reading server preface"):
		return fmt.Sprintf("does taskd serve TLS at %s? set --tls or --tls-ca-file; or is it another program?", c.address)
	}
	return ""
}

// textOf is the message of a status with the fields that it is about.
func textOf(st *status.Status) string {
	text := st.Message()
	for _, d := range st.Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range bad.FieldViolations {
				if !strings.Contains(text, v.Field) {
					text += "; " + v.Field + ": " + v.Description
				}
			}
		}
	}
	return text
}

// domainError gives an error of a store its exit code.
func domainError(err error) error {
	if err == nil {
		return nil
	}
	code := cli.Failure
	switch task.CodeOf(err) {
	case task.InvalidArgument:
		code = cli.Usage
	case task.NotFound:
		code = cli.NotFound
	case task.AlreadyExists, task.FailedPrecondition:
		code = cli.Conflict
	case task.Unavailable:
		code = cli.Unavailable
	}
	return &cli.Error{Code: code, Err: err}
}

// detailOf returns the first detail of a type that the API's answer has, or nil.
func detailOf[T any](err error) (none T) {
	for _, d := range status.Convert(err).Details() {
		if found, ok := d.(T); ok {
			return found
		}
	}
	return none
}

// reasonOf is the reason that an answer of the API gives for an error; empty if it gives none.
func reasonOf(err error) task.ErrorReason {
	return task.ErrorReason(detailOf[*errdetails.ErrorInfo](err).GetReason())
}
