package app

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	rpccode "google.golang.org/genproto/googleapis/rpc/code"

	"github.com/perceptor/perceptor/audit"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/telemetry"
	"github.com/perceptor/perceptor/server"
	"github.com/perceptor/perceptor/store"
	auditstore "github.com/perceptor/perceptor/store/audit"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/task"
)

// auditLog implements [server.Audit]: events go through the recorder to the table, and to a
// file if the configuration names one.
type auditLog struct {
	recorder *audit.Recorder
	store    *auditstore.Store
}

func newAuditLog(o *Options, cluster *store.Cluster) *auditLog {
	l := &auditLog{store: auditstore.New(cluster)}
	m := telemetry.NewAudit(o.Metrics)
	l.recorder = audit.New(audit.Config{
		Sinks: auditSinks(&o.Config.Audit, l.store), Rate: o.Config.Audit.Rate, Recorded: m.Recorded, Dropped: m.Dropped, Log: o.Log,
	})
	return l
}

func auditSinks(c *config.Audit, table *auditstore.Store) []audit.Sink {
	sinks := []audit.Sink{auditTable{table}}
	if c.File != "" {
		sinks = append(sinks, audit.NewLines(c.File))
	}
	return sinks
}

// auditTable is the sink that stores events in Postgres.
type auditTable struct{ store *auditstore.Store }

func (t auditTable) Name() string { return "table" }

func (t auditTable) Write(ctx context.Context, events []task.AuditEvent) error {
	return t.store.Append(ctx, events)
}

// AdmitAudit implements [server.Audit].
func (l *auditLog) AdmitAudit(e task.AuditEvent) bool { return l.recorder.Admit(e) }

// RecordAudit implements [server.Audit].
func (l *auditLog) RecordAudit(ctx context.Context, e task.AuditEvent) { l.recorder.Record(ctx, e) }

// ListAudit implements [server.Audit].
func (l *auditLog) ListAudit(ctx context.Context, q task.AuditQuery) (task.AuditPage, error) {
	return l.store.List(ctx, q)
}

// inspectionAudit bounds the time in which an inspection is recorded.
const inspectionAudit = 2 * time.Second

// inspected implements [server.Inspections].
func (l *auditLog) inspected(ctx context.Context, i server.Inspection) error {
	ctx, cancel := context.WithTimeout(ctx, inspectionAudit)
	defer cancel()
	err := l.recorder.Store(ctx, task.AuditEvent{
		Tenant: i.Tenant.ID, TenantName: i.Tenant.Name, Actor: i.Caller, Operator: true, Source: i.Source,
		Action: strings.TrimPrefix(i.Method, "perceptor.v1."), Object: i.Object(), Result: rpccode.Code(i.Code).String(), RequestID: i.RequestID,
	})
	if err != nil {
		return task.Errorf(task.ReasonDatabaseUnavailable, "the call cannot be recorded in the audit log; try again").CausedBy(err)
	}
	return nil
}

// commandAudit bounds the time in which a command records its event.
const commandAudit = 5 * time.Second

// RecordCommand records what a command has done without the API, for the installation or for
// the tenant with the name in e. The actor is the user of the operating system. The event goes to the table, and to the file of the configuration
// unless that is standard output, which belongs to the command.
func RecordCommand(ctx context.Context, c *config.Config, e task.AuditEvent) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandAudit)
	defer cancel()
	cluster, err := OpenTool(ctx, c, "perceptorctl")
	if err != nil {
		return err
	}
	defer cluster.Close()
	file := c.Audit
	if file.File == audit.StandardOutput {
		file.File = ""
	}
	e.Actor, e.Operator = localUser(), true
	if e.TenantName != "" {
		// The name of an unknown tenant is part of the event nevertheless.
		if t, err := control.New(cluster, nil).Tenant(ctx, e.TenantName); err == nil {
			e.Tenant = t.ID
		}
	}
	return audit.RecordNow(ctx, e, auditSinks(&file, auditstore.New(cluster))...)
}

// localUser returns user@host. It survives sudo: then it names both users.
func localUser() string {
	name := "uid " + fmt.Sprint(os.Getuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if behind := os.Getenv("SUDO_USER"); behind != "" && behind != name {
		name = behind + " as " + name
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return name + "@" + host
}
