// Package assign
package assign
