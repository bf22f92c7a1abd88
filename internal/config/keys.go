package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/internal/spelling"
)

// envPrefix begins the names of all environment variables.
const envPrefix = "PERCEPTOR_"

// Key describes one key of the configuration.
type Key struct {
	// Name is the path, such as "taskd.grpc_addr".
	Name string
	// Default is the default as text; "" means none.
	Default string
	// Doc is the key's documentation.
	Doc string
	// Secret says that the value must not be shown.
	Secret bool

	// fileOf is the name of the secret key whose value is in the file that this key names;
	// "" for all other keys.
	fileOf string
	index  []int
	kind   reflect.Type
}

// Env is the name of the key's environment variable.
func (k Key) Env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(k.Name, ".", "_"))
}

// Flag is the name of the key's flag, without dashes.
func (k Key) Flag() string { return strings.ReplaceAll(k.Name, "_", "-") }

// flagOrigin is the origin of a value that was given as a flag.
func (k Key) flagOrigin() string { return "flag --" + k.Flag() }

// section is a struct of keys.
type section struct{ name, doc string }

// keys holds all keys and sections all their sections, in the order of the struct.
var keys, sections = reflectKeys(reflect.TypeFor[Config](), "", nil)

var keyByName = func() map[string]Key {
	m := make(map[string]Key, len(keys))
	for _, k := range keys {
		m[k.Name] = k
	}
	return m
}()

// Keys returns all keys, in the order of the documentation.
func Keys() []Key { return slices.Clone(keys) }

func reflectKeys(t reflect.Type, prefix string, index []int) (found []Key, in []section) {
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		name := f.Tag.Get("key")
		if name == "" {
			panic(fmt.Sprintf("config: %s.%s has no key tag", t, f.Name))
		}
		at := append(slices.Clone(index), i)
		if f.Type.Kind() == reflect.Struct {
			in = append(in, section{prefix + name, f.Tag.Get("doc")})
			inner, below := reflectKeys(f.Type, prefix+name+".", at)
			found, in = append(found, inner...), append(in, below...)
			continue
		}
		k := Key{
			Name: prefix + name, Default: f.Tag.Get("default"), Doc: f.Tag.Get("doc"),
			Secret: f.Tag.Get("secret") == "true", index: at, kind: f.Type,
		}
		found = append(found, k)
		if k.Secret {
			found = append(found, k.fileKey())
		}
	}
	return found, in
}

// value returns the field of the key in c.
func (k Key) value(c *Config) reflect.Value { return reflect.ValueOf(c).Elem().FieldByIndex(k.index) }

var durationType = reflect.TypeFor[time.Duration]()

// typeName describes a valid value of the key, for messages.
func (k Key) typeName() string {
	if k.kind == durationType {
		return "a duration, such as 1s or 250ms"
	}
	switch k.kind.Kind() {
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		if k.kind.Elem().Kind() == reflect.Struct {
			return "a list of servers with dsn, databases and storage"
		}
		return "a list of texts"
	}
	return "a text"
}

// sectionNames returns the names of the sections, such as taskd and taskd.tls.
func sectionNames() []string {
	found := map[string]bool{}
	for _, k := range keys {
		for i, c := range k.Name {
			if c == '.' {
				found[k.Name[:i]] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// nearest returns the known name with the smallest edit distance to name.
func nearest(name string, known []string) string {
	best, distance := "", 1<<30
	for _, k := range known {
		if d := spelling.Distance(name, k); d < distance {
			best, distance = k, d
		}
	}
	return best
}

func names(list []Key, name func(Key) string) []string {
	out := make([]string, len(list))
	for i, k := range list {
		out[i] = name(k)
	}
	return out
}
