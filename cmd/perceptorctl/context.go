package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/perceptor/perceptor/internal/cli"
)

// A context is a named installation: its address, how to reach it, and a token.
type apiContext struct {
	Address  string `yaml:"address"`
	Token    string `yaml:"token,omitempty"`
	TLS      bool   `yaml:"tls,omitempty"`
	CAFile   string `yaml:"tls_ca_file,omitempty"`
	CertFile string `yaml:"tls_cert_file,omitempty"`
	KeyFile  string `yaml:"tls_key_file,omitempty"`
	Insecure bool   `yaml:"insecure,omitempty"`
}

// contexts is the content of the file of contexts.
type contexts struct {
	Current  string                 `yaml:"current,omitempty"`
	Contexts map[string]*apiContext `yaml:"contexts"`
}

const (
	contextsVariable = "PERCEPTOR_CONTEXTS"
	contextVariable  = "PERCEPTOR_CONTEXT"
	maxContextsBytes = 1 << 20
)

var contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// contextsPath returns the file of contexts of this user.
func contextsPath() (string, error) {
	if path := os.Getenv(contextsVariable); path != "" {
		return path, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", cli.Usagef("there is no folder for the file of contexts: %v; set %s", err, contextsVariable)
	}
	return filepath.Join(dir, "perceptor", "contexts.yaml"), nil
}

// readContexts reads the file. A file that does not exist has no contexts.
func readContexts() (*contexts, error) {
	all := &contexts{Contexts: map[string]*apiContext{}}
	path, err := contextsPath()
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, cli.Usagef("the file of contexts: %v", err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, cli.Usagef("the file of contexts: %v", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, &cli.Error{Code: cli.Usage, Err: fmt.Errorf("%s has tokens, and others may read or change it (mode %04o)", path, info.Mode().Perm()), Hint: "chmod 600 " + path}
	}
	text, err := io.ReadAll(io.LimitReader(f, maxContextsBytes))
	if err != nil {
		return nil, cli.Usagef("the file of contexts: %v", err)
	}
	d := yaml.NewDecoder(strings.NewReader(string(text)))
	d.KnownFields(true)
	if err := d.Decode(all); err != nil && !errors.Is(err, io.EOF) {
		return nil, cli.Usagef("%s cannot be read as contexts", path) // the error may have a token
	}
	return all, nil
}

// write replaces the file. It is the old one or the new one, whatever happens.
func (all *contexts) write() error {
	path, err := contextsPath()
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(all)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".contexts-*") // with mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// find returns the context with a name.
func (all *contexts) find(name string) (*apiContext, error) {
	if found := all.Contexts[name]; found != nil {
		return found, nil
	}
	known := strings.Join(slices.Sorted(maps.Keys(all.Contexts)), ", ")
	if known == "" {
		known = "there are none"
	}
	return nil, &cli.Error{Code: cli.Usage, Err: fmt.Errorf("there is no context %q", name), Hint: "known contexts: " + known}
}

// useContext takes the server and the token of a context, unless an address or a token is given
// otherwise: no token goes to another server than its own. Without any of them the address is that
// of the taskd on this machine, if PERCEPTOR_CONFIG says where it listens.
func (c *ctl) useContext(cmd *cobra.Command) error {
	flags := cmd.Flags()
	switch {
	case flags.Changed("context") && flags.Changed("address"):
		return cli.Usagef("--context and --address: only one of them can be given")
	case flags.Changed("address"):
		c.addressFrom = "--address"
		return nil
	case c.context == "" && os.Getenv("PERCEPTOR_ADDRESS") != "":
		c.addressFrom = "PERCEPTOR_ADDRESS"
		return nil
	case c.context == "" && os.Getenv("PERCEPTOR_TOKEN") != "":
		return c.useConfigured(cmd)
	}
	all, err := readContexts()
	if err != nil {
		return err
	}
	name := c.context
	if name == "" {
		name = all.Current
	}
	if name == "" {
		return c.useConfigured(cmd)
	}
	c.addressFrom = "context " + name
	chosen, err := all.find(name)
	if err != nil {
		return err
	}
	c.address, c.contextToken = chosen.Address, chosen.Token
	c.tls, c.insecure = c.tls || chosen.TLS, c.insecure || chosen.Insecure
	unless := func(flag string, file *string, chosen string) {
		if !flags.Changed(flag) {
			*file = chosen
		}
	}
	unless("tls-ca-file", &c.caFile, chosen.CAFile)
	unless("tls-cert-file", &c.certFile, chosen.CertFile)
	unless("tls-key-file", &c.keyFile, chosen.KeyFile)
	return nil
}

func (c *ctl) contextCommand() *cobra.Command {
	cmd := group("context", "Name installations, with their address and token, and choose one",
		c.contextAdd(), c.contextList(), contextUse(), contextRemove())
	cmd.Long = "Name installations, with their address and token, and choose one. They are kept in perceptor/contexts.yaml in your folder of\n" +
		"settings (or in " + contextsVariable + "), which nobody else may read. The chosen context counts unless --address, PERCEPTOR_ADDRESS or\n" +
		"PERCEPTOR_TOKEN is given; the one of --context or " + contextVariable + " counts before these variables. --token-file replaces its token."
	return cmd
}

func (c *ctl) contextAdd() *cobra.Command {
	return &cobra.Command{
		Use: "add NAME", Short: "Add or replace a context", Args: cobra.ExactArgs(1),
		Long: "Add or replace a context, with the flags --address, --tls, --tls-ca-file, --tls-cert-file, --tls-key-file and --insecure. The\n" +
			"token is read from --token-file, or from standard input with --token-file -. The first context is chosen at once.",
		Example: "  perceptorctl context add prod --address perceptor.example.com:7070 --tls --token-file -",
		RunE: func(cmd *cobra.Command, args []string) error {
			if !contextName.MatchString(args[0]) {
				return cli.Usagef("%q is not a name of 1 to 63 letters, digits, dots, dashes and underscores", args[0])
			}
			added, err := c.newContext(cmd)
			if err != nil {
				return err
			}
			all, err := readContexts()
			if err != nil {
				return err
			}
			if all.Contexts == nil {
				all.Contexts = map[string]*apiContext{}
			}
			if all.Contexts[args[0]] = added; all.Current == "" {
				all.Current = args[0]
			}
			if err := all.write(); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "context %s is %s\n", args[0], added.Address)
			return err
		},
	}
}

// newContext returns the context that the flags describe.
func (c *ctl) newContext(cmd *cobra.Command) (*apiContext, error) {
	if err := c.checkAddress(); err != nil {
		return nil, err
	}
	if c.tokenFile == "-" {
		text, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxContextsBytes))
		if err != nil {
			return nil, err
		}
		c.contextToken, c.tokenFile = strings.TrimSpace(string(text)), ""
	}
	secret, err := c.secret()
	if err != nil {
		return nil, err
	}
	if _, err := c.credentials(); err != nil {
		return nil, err
	}
	added := &apiContext{Address: c.address, Token: secret, TLS: c.tls, Insecure: c.insecure}
	for file, to := range map[*string]*string{&c.caFile: &added.CAFile, &c.certFile: &added.CertFile, &c.keyFile: &added.KeyFile} {
		if *file == "" {
			continue
		}
		if *to, err = filepath.Abs(*file); err != nil {
			return nil, err
		}
	}
	return added, nil
}

func (c *ctl) contextList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the contexts, without their tokens", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.checkOutput(); err != nil {
				return err
			}
			all, err := readContexts()
			if err != nil {
				return err
			}
			t := &table{head: []string{"CHOSEN", "NAME", "ADDRESS", "TLS"}}
			listed := []map[string]any{}
			for _, name := range slices.Sorted(maps.Keys(all.Contexts)) {
				x := all.Contexts[name]
				closed := x.TLS || x.CAFile != "" || x.CertFile != ""
				t.add(map[bool]string{true: "*", false: ""}[name == all.Current], name, x.Address, map[bool]string{true: "yes", false: "no"}[closed])
				listed = append(listed, map[string]any{"name": name, "address": x.Address, "tls": closed, "chosen": name == all.Current})
			}
			if c.structured() {
				return c.writeData(cmd, listed)
			}
			return t.write(cmd.OutOrStdout())
		},
	}
}

// editContexts changes the file for the context that an argument names.
func editContexts(use, short string, edit func(all *contexts, name string)) *cobra.Command {
	return &cobra.Command{
		Use: use + " NAME", Short: short, Args: cobra.ExactArgs(1), ValidArgsFunction: completeContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			all, err := readContexts()
			if err != nil {
				return err
			}
			if _, err := all.find(args[0]); err != nil {
				return err
			}
			edit(all, args[0])
			return all.write()
		},
	}
}

func contextUse() *cobra.Command {
	return editContexts("use", "Choose the context of further commands", func(all *contexts, name string) { all.Current = name })
}

func contextRemove() *cobra.Command {
	return editContexts("remove", "Remove a context and its token from the file; the token stays valid", func(all *contexts, name string) {
		delete(all.Contexts, name)
		if all.Current == name {
			all.Current = ""
		}
	})
}

// completeContexts completes names of contexts.
func completeContexts(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	all, err := readContexts()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.Sorted(maps.Keys(all.Contexts)), cobra.ShellCompDirectiveNoFileComp
}
