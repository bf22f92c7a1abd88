package task

// Check says whether an attempt should still be executed: Accepted, or the code that
// its result would get. For an attempt that is not the current one the code is
// Superseded, because the current one was delivered too. Check changes nothing.
func (m *Machine) Check(a Attempt) Code {
	_, code := m.currentRow(a)
	return code
}

// Newer returns the terms of the open run seq if they are newer than version; nil:
// they are not, or version is 0.
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
