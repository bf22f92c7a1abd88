// Package fairness measures how tenants get on with each other: how late the runs
// of one are while another has a million overdue, how evenly tenants with a backlog
// are served, and how exactly a dispatch rate is kept and how soon a raised one acts.
//
// Each tenant has a listener process and a history of its own, and each history is
// checked against the whole contract.
package fairness
