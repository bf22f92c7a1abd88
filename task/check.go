package task

// Check says whether an attempt should still be executed. It returns Accepted, or the
// code that a result of the attempt would get. For an attempt that is not the current
// one it returns Superseded, because the current attempt was delivered too. Check
// changes nothing.
func (m *Machine) Check(a Attempt) Code {
	_, code := m.currentRow(a)
	return code
}

// Newer returns the terms of the open run seq if they are newer than version. It
// returns nil if they are not, or if version is 0.
func (m *Machine) Newer(seq int64, version int32) *RunTerms {
	r := m.Task
	if run := m.runRow(seq); run != nil {
		r = run
	}
	if version == 0 || r.Version <= version {
		return nil
	}
	return &RunTerms{Version: r.Version, Kind: r.Kind, Params: r.Params}
}
