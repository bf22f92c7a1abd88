//go:build planted

package plant

import "os"

// Bug reports whether the named bug is planted in this process.
func Bug(name string) bool { return os.Getenv(Variable) == name }
