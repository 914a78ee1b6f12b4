package name

import "slices"

// PortSet is a set of ports.
type PortSet struct {
	All   bool     // every port; Ports is empty then
	Ports []uint16 // sorted, no duplicates
}

// Contains reports whether a port is in the set.
func (s PortSet) Contains(port uint16) bool {
	if s.All {
		return true
	}
	_, found := slices.BinarySearch(s.Ports, port)
	return found
}

// Add adds a port; 0 is every port.
func (s *PortSet) Add(port uint16) {
	switch i, found := slices.BinarySearch(s.Ports, port); {
	case s.All || found:
	case port == 0:
		s.All, s.Ports = true, nil
	default:
		s.Ports = slices.Insert(s.Ports, i, port)
	}
}

func (s PortSet) Clone() PortSet { return PortSet{s.All, slices.Clone(s.Ports)} }

// With returns the union of two sets.
func (s PortSet) With(other PortSet) PortSet {
	out := s.Clone()
	if other.All {
		out.Add(0)
	}
	for _, port := range other.Ports {
		out.Add(port)
	}
	return out
}

// Covers reports whether every port of inner is in the set.
func (s PortSet) Covers(inner PortSet) bool {
	if s.All {
		return true
	}
	return !inner.All && !slices.ContainsFunc(inner.Ports, func(p uint16) bool { return !s.Contains(p) })
}
