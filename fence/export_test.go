package fence

// Remembered is the number of resources that a Memory keeps.
func (m *Memory) Remembered() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.seats)
}
