//go:build planted

package mutation

import "os"

// Bug reports whether the named bug is planted in this process.
func Bug(name string) bool { return os.Getenv(Variable) == name }
