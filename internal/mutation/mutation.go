// Package mutation proves that the tests of the dispatch protocol find what they
// are there for. Each known way to get the protocol wrong has a name; a program
// built with the tag "planted" misbehaves in the way that the environment
// variable names, and the tests listed for it must then fail.
//
// Without the tag, Bug is false and the compiler removes what depends on it.
package mutation

// Variable names the bug that a program built with the tag shows.
const Variable = "PERCEPTOR_PLANT"
