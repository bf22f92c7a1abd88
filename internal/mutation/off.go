//go:build !planted

package mutation

// Bug reports whether the named bug is planted: never, in a product build.
func Bug(string) bool { return false }
