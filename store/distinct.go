package store

import "errors"

// Distinct joins errors of databases, those with the same text once: databases of one server
// mostly fail alike.
func Distinct(errs ...error) error {
	var kept []error
	seen := map[string]bool{}
	for _, err := range errs {
		if err != nil && !seen[err.Error()] {
			seen[err.Error()] = true
			kept = append(kept, err)
		}
	}
	return errors.Join(kept...)
}
