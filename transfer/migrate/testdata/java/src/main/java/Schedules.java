import com.github.kagkarlsson.scheduler.SchedulerClient;
import com.github.kagkarlsson.scheduler.task.TaskInstance;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.Statement;
import java.time.Instant;
import java.time.ZoneId;
import java.time.ZonedDateTime;
import java.util.Date;
import java.util.Properties;
import java.util.TimeZone;
import org.postgresql.ds.PGSimpleDataSource;
import org.quartz.CalendarIntervalScheduleBuilder;
import org.quartz.CronScheduleBuilder;
import org.quartz.DailyTimeIntervalScheduleBuilder;
import org.quartz.DateBuilder.IntervalUnit;
import org.quartz.DisallowConcurrentExecution;
import org.quartz.Job;
import org.quartz.JobBuilder;
import org.quartz.JobDataMap;
import org.quartz.JobDetail;
import org.quartz.JobExecutionContext;
import org.quartz.ScheduleBuilder;
import org.quartz.Scheduler;
import org.quartz.SimpleScheduleBuilder;
import org.quartz.Trigger;
import org.quartz.TriggerBuilder;
import org.quartz.TriggerKey;
import org.quartz.impl.StdSchedulerFactory;
import org.quartz.impl.calendar.HolidayCalendar;

/**
 * Writes schedules with Quartz and db-scheduler into a PostgreSQL database, and prints when Quartz will fire: a
 * line GROUP.NAME and instants in milliseconds for each trigger.
 */
public final class Schedules {
  /** A job that may overlap with itself. */
  public static final class Report implements Job {
    @Override
    public void execute(JobExecutionContext context) {}
  }

  /** A job that may not. */
  @DisallowConcurrentExecution
  public static final class Exclusive implements Job {
    @Override
    public void execute(JobExecutionContext context) {}
  }

  private static final int SHOWN = 40;

  public static void main(String[] args) throws Exception {
    String url = args[0];
    quartz(url, true, "PROPERTIES");
    quartz(url, false, "OBJECTS");
    dbScheduler(url);
  }

  private static Scheduler scheduler(String url, boolean properties, String name) throws Exception {
    Properties p = new Properties();
    p.setProperty("org.quartz.scheduler.instanceName", name);
    p.setProperty("org.quartz.scheduler.skipUpdateCheck", "true");
    p.setProperty("org.quartz.threadPool.class", "org.quartz.simpl.SimpleThreadPool");
    p.setProperty("org.quartz.threadPool.threadCount", "1");
    p.setProperty("org.quartz.jobStore.class", "org.quartz.impl.jdbcjobstore.JobStoreTX");
    p.setProperty("org.quartz.jobStore.driverDelegateClass", "org.quartz.impl.jdbcjobstore.PostgreSQLDelegate");
    p.setProperty("org.quartz.jobStore.useProperties", Boolean.toString(properties));
    p.setProperty("org.quartz.jobStore.dataSource", "db");
    p.setProperty("org.quartz.dataSource.db.driver", "org.postgresql.Driver");
    p.setProperty("org.quartz.dataSource.db.URL", url);
    p.setProperty("org.quartz.dataSource.db.provider", "hikaricp");
    p.setProperty("org.quartz.dataSource.db.maxConnections", "3");
    return new StdSchedulerFactory(p).getScheduler();
  }

  private static void quartz(String url, boolean properties, String name) throws Exception {
    try (Connection c = DriverManager.getConnection(url); Statement s = c.createStatement();
        InputStream in = Schedules.class.getResourceAsStream("/org/quartz/impl/jdbcjobstore/tables_postgres.sql")) {
      if (properties) { // once
        s.execute(new String(in.readAllBytes(), StandardCharsets.UTF_8));
      }
    }
    Scheduler q = scheduler(url, properties, name);
    Date start = Date.from(ZonedDateTime.of(2030, 1, 28, 9, 30, 0, 0, ZoneId.of("Europe/Berlin")).toInstant());
    Date end = Date.from(Instant.parse("2030-06-01T00:00:00Z"));
    TimeZone berlin = TimeZone.getTimeZone("Europe/Berlin");
    TimeZone newYork = TimeZone.getTimeZone("America/New_York");
    JobDataMap data = new JobDataMap();
    data.put("customer", "42");
    data.put("text", "Grüße = \"ja\": # !\n\\ 世");
    add(q, "mail", "once", start, null, SimpleScheduleBuilder.simpleSchedule(), Report.class, data, null);
    add(q, "mail", "once-ignore", start, null, SimpleScheduleBuilder.simpleSchedule().withMisfireHandlingInstructionIgnoreMisfires(), Report.class, null, null);
    add(q, "poll", "forever", start, null, SimpleScheduleBuilder.repeatMinutelyForever(7), Report.class, null, null);
    add(q, "poll", "five", start, null, SimpleScheduleBuilder.repeatHourlyForTotalCount(5, 6), Report.class, null, null);
    add(q, "poll", "until", start, end, SimpleScheduleBuilder.repeatHourlyForever(24 * 7).withMisfireHandlingInstructionFireNow(), Exclusive.class, null, null);
    add(q, "poll", "next", start, null, SimpleScheduleBuilder.repeatHourlyForever(5).withMisfireHandlingInstructionNextWithExistingCount(), Report.class, null, null);
    add(q, "cron", "weekdays", start, null, cron("0 15 10 ? * MON-FRI", berlin), Report.class, data, null);
    add(q, "cron", "last-friday", start, null, cron("0 15 10 ? * 6L 2030-2032", newYork).withMisfireHandlingInstructionDoNothing(), Report.class, null, null);
    add(q, "cron", "last-day", start, null, cron("0 0 5 L * ?", berlin).withMisfireHandlingInstructionIgnoreMisfires(), Report.class, null, null);
    add(q, "cron", "nearest", start, end, cron("0 30 8 15W * ?", berlin), Exclusive.class, null, null);
    Date lastRun = Date.from(Instant.parse("2030-02-07T11:00:00Z"));
    add(q, "cron", "at-end", start, lastRun, cron("0 0 12 * * ?", berlin), Report.class, null, null);
    add(q, "cron", "gap", start, null, cron("0 30 2 * * ?", berlin), Report.class, null, null);
    add(q, "cron", "paused", start, null, cron("0 0 12 1/5 * ?", newYork), Report.class, null, null);
    q.pauseTrigger(new TriggerKey("paused", "cron"));
    add(q, "calendar", "hours", start, null, interval(36, IntervalUnit.HOUR, berlin), Report.class, null, null);
    add(q, "calendar", "days", start, null, interval(2, IntervalUnit.DAY, berlin), Report.class, null, null);
    add(q, "calendar", "same-hour", start, null, interval(2, IntervalUnit.DAY, berlin).preserveHourOfDayAcrossDaylightSavings(true), Report.class, null, null);
    add(q, "calendar", "weeks", start, null, interval(1, IntervalUnit.WEEK, newYork), Report.class, null, null);
    add(q, "calendar", "months", start, null, interval(1, IntervalUnit.MONTH, berlin), Report.class, null, null);
    add(q, "calendar", "years", start, null, interval(1, IntervalUnit.YEAR, berlin), Report.class, null, null);
    Date last = Date.from(ZonedDateTime.of(2030, 1, 31, 9, 30, 0, 0, ZoneId.of("Europe/Berlin")).toInstant());
    add(q, "calendar", "month-ends", last, null, interval(1, IntervalUnit.MONTH, berlin), Report.class, null, null);
    add(q, "other", "daily", start, null, DailyTimeIntervalScheduleBuilder.dailyTimeIntervalSchedule().withIntervalInMinutes(30), Report.class, null, null);
    HolidayCalendar holidays = new HolidayCalendar();
    holidays.addExcludedDate(Date.from(Instant.parse("2030-05-01T00:00:00Z")));
    q.addCalendar("holidays", holidays, true, true);
    add(q, "other", "holidays", start, null, cron("0 0 8 * * ?", berlin), Report.class, null, "holidays");
    if (!properties) {
      JobDataMap numbers = new JobDataMap();
      numbers.put("count", 7);
      numbers.put("exact", true);
      numbers.put("size", 1234567890123L);
      numbers.put("name", "n");
      add(q, "mail", "numbers", start, null, SimpleScheduleBuilder.simpleSchedule(), Report.class, numbers, null);
      JobDataMap objects = new JobDataMap();
      objects.put("when", Instant.EPOCH);
      add(q, "mail", "objects", start, null, SimpleScheduleBuilder.simpleSchedule(), Report.class, objects, null);
    }
    q.shutdown();
  }

  private static CronScheduleBuilder cron(String expression, TimeZone zone) {
    return CronScheduleBuilder.cronSchedule(expression).inTimeZone(zone);
  }

  private static CalendarIntervalScheduleBuilder interval(int n, IntervalUnit unit, TimeZone zone) {
    return CalendarIntervalScheduleBuilder.calendarIntervalSchedule().withInterval(n, unit).inTimeZone(zone);
  }

  private static void add(Scheduler q, String group, String name, Date start, Date end, ScheduleBuilder<?> schedule,
      Class<? extends Job> job, JobDataMap data, String calendar) throws Exception {
    JobBuilder j = JobBuilder.newJob(job).withIdentity(group + "-job-" + name, "jobs").storeDurably();
    j.usingJobData("of", "job");
    JobDetail detail = j.build();
    TriggerBuilder<?> b = TriggerBuilder.newTrigger().withIdentity(name, group).forJob(detail).startAt(start).endAt(end).withSchedule(schedule);
    if (data != null) {
      b.usingJobData(data);
    }
    if (calendar != null) {
      b.modifiedByCalendar(calendar);
    }
    Trigger t = b.build();
    q.scheduleJob(detail, t);
    StringBuilder line = new StringBuilder(q.getSchedulerName() + " " + group + "." + name);
    Date at = q.getTrigger(t.getKey()).getNextFireTime();
    for (int i = 0; i < SHOWN && at != null; i++) {
      line.append(' ').append(at.getTime());
      at = q.getTrigger(t.getKey()).getFireTimeAfter(at);
    }
    System.out.println(line);
  }

  private static void dbScheduler(String url) throws Exception {
    try (Connection c = DriverManager.getConnection(url); Statement s = c.createStatement()) {
      s.execute("CREATE TABLE scheduled_tasks (task_name text NOT NULL, task_instance text NOT NULL, task_data bytea,"
          + " execution_time timestamptz, picked boolean NOT NULL, picked_by text, last_success timestamptz,"
          + " last_failure timestamptz, consecutive_failures int, last_heartbeat timestamptz, version bigint NOT NULL,"
          + " priority smallint, state text, PRIMARY KEY (task_name, task_instance))");
    }
    PGSimpleDataSource source = new PGSimpleDataSource();
    source.setUrl(url);
    SchedulerClient client = SchedulerClient.Builder.create(source).build();
    client.schedule(new TaskInstance<>("mail", "text", "for 42"), Instant.parse("2030-01-28T08:30:00.123Z"));
    client.schedule(new TaskInstance<>("mail", "none"), Instant.parse("2030-01-28T08:30:00Z"));
    client.schedule(new TaskInstance<>("mail", "number", 42), Instant.parse("2030-01-29T08:30:00Z"));
    client.schedule(new TaskInstance<>("nightly", "recurring"), Instant.parse("2030-01-30T00:00:00Z"));
    SchedulerClient json = SchedulerClient.Builder.create(source).serializer(new Json()).build();
    json.schedule(new TaskInstance<>("invoice", "json", "{\"customer\":\"42\",\"lines\":[1,2],\"gross\":19.99}"), Instant.parse("2030-02-01T00:00:00Z"));
  }

  /** Stores texts as they are, as serializers to JSON do. */
  private static final class Json implements com.github.kagkarlsson.scheduler.serializer.Serializer {
    @Override
    public byte[] serialize(Object data) {
      return ((String) data).getBytes(StandardCharsets.UTF_8);
    }

    @Override
    public <T> T deserialize(Class<T> type, byte[] data) {
      return type.cast(new String(data, StandardCharsets.UTF_8));
    }
  }
}
