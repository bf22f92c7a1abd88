package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
	yamlv3 "go.yaml.in/yaml/v3"
)

// FileVariable is the environment variable with the path of the file. It applies if
// no flag names the file.
const FileVariable = "PERCEPTOR_CONFIG"

// Sources are the inputs of a configuration.
type Sources struct {
	// File is the path of a YAML file; "" means none.
	File string
	// Environ holds variables in the form NAME=VALUE; nil means those of the process.
	Environ []string
	// Flags holds the flags of [Register]. Only flags that were set count. It may be nil.
	Flags *pflag.FlagSet
}

// Loaded is a configuration with the origin of each value.
type Loaded struct {
	Config
	origins map[string]string
	// files has the path of each key that names a file with a secret.
	files map[string]string
	// dsnSecrets says that the last source of postgres.servers gave a password in it.
	dsnSecrets bool
}

// Register adds a flag for every key, or for those of some sections.
func Register(flags *pflag.FlagSet, sections ...string) {
	for _, k := range keys {
		if top, _, _ := strings.Cut(k.Name, "."); len(sections) > 0 && !slices.Contains(sections, top) {
			continue
		}
		usage := strings.TrimSuffix(strings.ReplaceAll(k.Doc, "`", ""), ".")
		if k.Default != "" {
			usage += " (default " + k.Default + ")"
		}
		flags.Var(&flagText{kind: k.flagType()}, k.Flag(), usage)
		if k.Secret { // it exists to be refused with a hint, and without its value
			_ = flags.MarkHidden(k.Flag()) // the flag is there
		}
	}
}

// flagText is the value of a flag before it is decoded. It implements [pflag.Value].
type flagText struct{ text, kind string }

func (f *flagText) String() string { return f.text }

func (f *flagText) Set(text string) error {
	f.text = text
	return nil
}

// Type returns the word for the value in the help.
func (f *flagText) Type() string { return f.kind }

// Load reads a configuration. Its error names all unknown keys and all values of a
// wrong type. [Config.Validate] checks the values themselves.
func Load(src Sources) (*Loaded, error) {
	l := &Loaded{origins: map[string]string{}, files: map[string]string{}}
	d := &decoder{}
	for _, k := range keys {
		l.origins[k.Name] = "default"
		if k.Default != "" {
			d.text(k, k.Default, "default", k.value(&l.Config))
		}
	}
	for _, layer := range []func(*decoder, Sources) (*koanf.Koanf, func(Key) string, error){fileLayer, envLayer, flagLayer} {
		values, origin, err := layer(d, src)
		if err != nil {
			return nil, err
		}
		l.apply(d, values, origin)
	}
	l.keepFiles()
	l.checkFile(d, src.File)
	l.refuseSecretFlags(d)
	if len(d.faults) > 0 {
		return nil, errors.Join(d.faults...)
	}
	return l, nil
}

// apply overrides earlier values with those of one layer.
func (l *Loaded) apply(d *decoder, values *koanf.Koanf, origin func(Key) string) {
	all := values.All()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		k, ok := keyByName[name]
		if !ok {
			d.unknown(name)
			continue
		}
		from := origin(k)
		l.origins[k.Name] = from
		if k.fileOf != "" {
			l.fromFile(d, k, all, from)
			continue
		}
		if text, ok := all[name].(fromText); ok {
			d.text(k, string(text), from, k.value(&l.Config))
			continue
		}
		d.value(k, all[name], from, k.value(&l.Config))
	}
	if _, given := all[serversKey]; given {
		l.dsnSecrets = d.dsnSecrets
	}
}

// fromFile sets the value of a secret key to the content of the file that k names in the
// values of one layer. The empty path stands for no file.
func (l *Loaded) fromFile(d *decoder, k Key, all map[string]any, from string) {
	path := fmt.Sprint(all[k.Name])
	if l.files[k.Name] = path; path == "" {
		return
	}
	if value, given := all[k.fileOf]; given && fmt.Sprint(value) != "" {
		d.fault("%s: %s is given, too (%s)", k.Name, k.fileOf, from)
		return
	}
	secret, err := ReadSecret(path)
	if err != nil {
		d.fault("%s: %v (%s)", k.Name, err, from)
		return
	}
	k.value(&l.Config).SetString(secret)
	l.origins[k.fileOf] = k.Name
}

// fromText marks values that come from the environment or a flag.
type fromText string

// anchor matches the error for a value that begins with *, which may be a secret.
var anchor = regexp.MustCompile(`(unknown anchor) '.*' referenced`)

func fileLayer(_ *decoder, src Sources) (*koanf.Koanf, func(Key) string, error) {
	k := koanf.New(".")
	if src.File == "" {
		return k, nil, nil
	}
	if err := k.Load(file.Provider(src.File), strictYAML{yaml.Parser()}); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, nil, fmt.Errorf("configuration file %s does not exist", src.File)
		}
		return nil, nil, fmt.Errorf("configuration file %s: %s", src.File, anchor.ReplaceAllString(err.Error(), "$1 referenced; a value that begins with * needs quotes"))
	}
	return k, func(Key) string { return "file " + src.File }, nil
}

// strictYAML refuses what would otherwise be in force in part only.
type strictYAML struct{ *yaml.YAML }

func (y strictYAML) Unmarshal(text []byte) (map[string]any, error) {
	if err := oneMapping(text); err != nil {
		return nil, err
	}
	values, err := y.YAML.Unmarshal(text)
	if err != nil {
		return nil, err
	}
	dropEmpty(values, "")
	return values, givenOnce(values, "", map[string]bool{})
}

// oneMapping returns an error if the text has no keys, or a second document, which the parser would leave.
func oneMapping(text []byte) error {
	documents := yamlv3.NewDecoder(bytes.NewReader(text))
	for n := 0; ; n++ {
		var document yamlv3.Node
		switch err := documents.Decode(&document); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case len(document.Content) == 1 && document.Content[0].Tag == "!!null":
		case n > 0:
			return fmt.Errorf("line %d: a second document begins after ---: join them into one", document.Line)
		case len(document.Content) == 1 && slices.Contains([]yamlv3.Kind{yamlv3.SequenceNode, yamlv3.ScalarNode}, document.Content[0].Kind):
			return fmt.Errorf("line %d: keys and their values are needed, such as log.level: info", document.Content[0].Line)
		}
	}
}

// dropEmpty removes sections without keys, as if they were not there: all of their keys may be comments.
func dropEmpty(values map[string]any, prefix string) {
	for word, value := range values {
		name := prefix + word + "."
		section, is := value.(map[string]any)
		if is {
			dropEmpty(section, name)
		}
		if (value == nil || is && len(section) == 0) && slices.ContainsFunc(keys, func(k Key) bool { return strings.HasPrefix(k.Name, name) }) {
			delete(values, word)
		}
	}
}

// givenOnce returns an error if a key is given both by its whole name and in its section, of
// which either could win.
func givenOnce(values map[string]any, prefix string, seen map[string]bool) error {
	for _, word := range slices.Sorted(maps.Keys(values)) {
		name := prefix + word
		if section, ok := values[word].(map[string]any); ok && len(section) > 0 {
			if err := givenOnce(section, name+".", seen); err != nil {
				return err
			}
			continue
		}
		if seen[name] {
			return fmt.Errorf("%s is given twice, by its whole name and in its section", name)
		}
		seen[name] = true
	}
	return nil
}

// otherVariables are variables of the programs and the SDK that are not keys.
var otherVariables = map[string]bool{
	FileVariable: true, "PERCEPTOR_ADDRESS": true, "PERCEPTOR_TOKEN": true, "PERCEPTOR_CONTEXT": true, "PERCEPTOR_CONTEXTS": true, "PERCEPTOR_MAVEN_BASE_URL": true,
}

// injected matches environment variables that are not configuration: those that Kubernetes
// sets for a service whose name begins with perceptor, and those that the tests use.
var injected = regexp.MustCompile(`^PERCEPTOR_(.*_)?(SERVICE_(HOST|PORT)(_.*)?|PORT(_[0-9]+_(TCP|UDP)(_.*)?)?)$|^PERCEPTOR_.*TEST_`)

func envLayer(d *decoder, src Sources) (*koanf.Koanf, func(Key) string, error) {
	byEnv := make(map[string]Key, len(keys))
	for _, k := range keys {
		byEnv[k.Env()] = k
	}
	opt := env.Opt{Prefix: envPrefix, TransformFunc: func(name, value string) (string, any) {
		if k, ok := byEnv[name]; ok {
			return k.Name, fromText(value)
		}
		if !otherVariables[name] && !injected.MatchString(name) {
			d.fault("unknown environment variable %s; did you mean %s?", name, nearest(name, names(keys, Key.Env)))
		}
		return "", nil
	}}
	if src.Environ != nil {
		opt.EnvironFunc = func() []string { return src.Environ }
	}
	k := koanf.New(".")
	err := k.Load(env.Provider(".", opt), nil)
	return k, func(k Key) string { return "env " + k.Env() }, err
}

func flagLayer(_ *decoder, src Sources) (*koanf.Koanf, func(Key) string, error) {
	k := koanf.New(".")
	if src.Flags == nil {
		return k, nil, nil
	}
	byFlag := make(map[string]Key, len(keys))
	for _, k := range keys {
		byFlag[k.Flag()] = k
	}
	provider := posflag.ProviderWithFlag(src.Flags, ".", nil, func(f *pflag.Flag) (string, any) {
		if k, ok := byFlag[f.Name]; ok && f.Changed {
			return k.Name, fromText(f.Value.String())
		}
		return "", nil
	})
	err := k.Load(provider, nil)
	return k, Key.flagOrigin, err
}
