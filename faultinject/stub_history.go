package faultinject

import "time"

type History struct{}

func NewHistory() *History                                              { return &History{} }
func (h *History) Strike(where string, from, to time.Time, what string) {}
func (h *History) Health(a, b int)                                      {}
func (h *History) Stored(node int, name, value string, until time.Time) {}
func (h *History) tried() map[string]struct{}                           { return nil }
func (h *History) String() string                                       { return "" }
