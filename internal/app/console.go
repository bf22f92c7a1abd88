package app

import (
	"crypto/hkdf"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"strings"

	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/console"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/oidc"
)

// newConsole makes the console, unless it is off; tls says that the server has TLS. It returns what
// the server needs to serve it; nil: there is none.
func (a *API) newConsole(tls bool) (func(grpc.ClientConnInterface) http.Handler, error) {
	if !a.o.Config.Taskd.Console.Enabled {
		return nil, nil
	}
	secret, err := consoleSecret(a.o.Config)
	if err != nil {
		return nil, err
	}
	if secret == nil {
		a.o.Log.Info("logins to the console end with this process and hold at this taskd only; set taskd.console.secret to share them")
	}
	issuer, err := consoleIssuer(&a.o.Config.Taskd, a.o.Log)
	if err != nil {
		return nil, err
	}
	a.console, err = console.New(console.Config{Secret: secret, Secure: tls || a.o.Config.Taskd.Console.BehindTLS(), Issuer: issuer, Version: a.o.Version, Log: a.o.Log})
	if err != nil {
		return nil, err
	}
	return a.console.Serve, nil
}

// consoleIssuer returns the issuer at which people log in to the console; nil: there is none.
func consoleIssuer(c *config.Taskd, log *slog.Logger) (console.Issuer, error) {
	l := &c.Console.Login
	if l.ClientID == "" {
		return nil, nil
	}
	client, err := issuerClient(&c.OIDC, log)
	if err != nil {
		return nil, err
	}
	return oidc.NewLogin(oidc.LoginConfig{
		Issuer: c.OIDC.Issuer, ClientID: l.ClientID, ClientSecret: l.ClientSecret, Scopes: l.Scopes, AccessToken: l.Token == "access", Client: client,
		RedirectURL: strings.TrimSuffix(c.Console.URL, "/") + console.IssuerPath,
	}), nil
}

// consoleSecret returns the secret of sessions; nil: each process draws its own.
func consoleSecret(c *config.Config) ([]byte, error) {
	switch {
	case c.Taskd.Console.Secret != "":
		return []byte(c.Taskd.Console.Secret), nil
	case c.Kafka.SigningSecret != "":
		return hkdf.Key(sha256.New, []byte(c.Kafka.SigningSecret), nil, "perceptor console secret", 32)
	}
	return nil, nil
}

// ConsoleLink returns the path of a page that logs in to the console with secrets, once and
// soon; "": there is no console.
func (a *API) ConsoleLink(secrets ...string) string {
	if a.console == nil {
		return ""
	}
	return a.console.Link(secrets...)
}
