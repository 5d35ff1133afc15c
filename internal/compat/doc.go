// Package compat tests that this library shares nodes with others: in a change
// from one to the other both run at the same time, on the same keys. It is a
// module of its own, so that the others are no dependencies of this one.
package compat
