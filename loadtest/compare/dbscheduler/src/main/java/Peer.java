import com.github.kagkarlsson.scheduler.Scheduler;
import com.github.kagkarlsson.scheduler.SchedulerName;
import com.github.kagkarlsson.scheduler.serializer.Serializer;
import com.github.kagkarlsson.scheduler.task.SchedulableInstance;
import com.github.kagkarlsson.scheduler.task.helper.OneTimeTask;
import com.github.kagkarlsson.scheduler.task.helper.Tasks;
import com.sun.management.OperatingSystemMXBean;
import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.lang.management.ManagementFactory;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.LongUnaryOperator;

/**
 * Does the work of package compare with db-scheduler. It uses lock-and-fetch, which the documentation
 * advises for throughput on PostgreSQL, with more than enough threads and one fetch for many executions.
 * Inserts are batched, and the driver rewrites a batch into one statement. ANALYZE follows them.
 */
public final class Peer {
  private static final int BATCH = 5_000;
  private static final int ADDERS = 2;
  private static final int THREADS = 50;
  private static final Duration POLL = Duration.ofMillis(10);
  private static final long A_MONTH_NS = Duration.ofDays(30).toNanos();
  private static final long PACE_MS = 10;
  /** The time from the last run of the warm-up to the measured jobs, as in phase.go. */
  private static final long AFTER_WARMUP_MS = 1000;

  private static final String TABLES =
      "CREATE TABLE scheduled_tasks (task_name text NOT NULL, task_instance text NOT NULL, task_data bytea,"
          + " execution_time timestamptz, picked boolean NOT NULL, picked_by text, last_success timestamptz,"
          + " last_failure timestamptz, consecutive_failures int, last_heartbeat timestamptz, version bigint NOT NULL,"
          + " priority smallint, state text, PRIMARY KEY (task_name, task_instance));"
          + " CREATE INDEX execution_time_idx ON scheduled_tasks (execution_time);"
          + " CREATE INDEX last_heartbeat_idx ON scheduled_tasks (last_heartbeat)";

  private final String phase;
  private final int jobs;
  private final int paramsBytes;
  private final long spreadNs;
  private final int waiting;
  private final int rate;
  private final long aheadNs;
  private final int warmup;

  private final AtomicIntegerArray runs;
  private final long[] lateNs;
  private final AtomicLong total = new AtomicLong();
  private final CountDownLatch all = new CountDownLatch(1);
  private volatile long firstNs;
  private long begunNs;
  private long begunCpuNs;
  private String pad;
  private HikariDataSource pool;
  private Scheduler scheduler;
  private final OneTimeTask<byte[]> noop =
      Tasks.oneTime("noop", byte[].class).execute((instance, context) -> handle(instance.getData(), context.getExecution().executionTime));

  private Peer(Map<String, String> flags) {
    phase = flags.get("phase");
    jobs = Integer.parseInt(flags.get("jobs"));
    paramsBytes = Integer.parseInt(flags.get("params-bytes"));
    spreadNs = Duration.ofMillis(Long.parseLong(flags.get("spread-ms"))).toNanos();
    waiting = Integer.parseInt(flags.get("waiting"));
    rate = Integer.parseInt(flags.get("rate"));
    aheadNs = Duration.ofMillis(Long.parseLong(flags.get("ahead-ms"))).toNanos();
    warmup = Integer.parseInt(flags.get("warmup"));
    runs = new AtomicIntegerArray(jobs);
    lateNs = phase.equals("lateness") ? new long[jobs] : new long[0];
  }

  public static void main(String[] args) throws Exception {
    Map<String, String> flags = new HashMap<>();
    for (String arg : args) {
      int equals = arg.indexOf('=');
      flags.put(arg.substring(2, equals), arg.substring(equals + 1));
    }
    new Peer(flags).run();
    System.exit(0);
  }

  private void run() throws Exception {
    pad = "x".repeat(Math.max(0, paramsBytes - "{\"n\":,\"pad\":\"\"}".length() - Integer.toString(jobs).length()));
    prepare();
    long added;
    switch (phase) {
      case "cycle" -> {
        scheduler.start();
        begin();
        added = addAll();
      }
      case "drain" -> {
        added = addAll();
        execute("ANALYZE scheduled_tasks");
        Thread.sleep(Duration.ofNanos(spreadNs).toMillis());
        begin();
        scheduler.start();
      }
      case "lateness" -> {
        scheduler.start();
        warmUp();
        begin();
        added = addPaced(warmup, jobs);
      }
      default -> throw new IllegalArgumentException("unknown phase " + phase);
    }
    finish(added);
  }

  private void prepare() throws Exception {
    URI dsn = URI.create(System.getenv("DATABASE_URL"));
    String[] user = dsn.getUserInfo().split(":", 2);
    HikariConfig config = new HikariConfig();
    config.setJdbcUrl("jdbc:postgresql://" + dsn.getHost() + ":" + dsn.getPort() + dsn.getPath() + "?reWriteBatchedInserts=true");
    config.setUsername(user[0]);
    config.setPassword(user[1]);
    config.setMaximumPoolSize(THREADS);
    pool = new HikariDataSource(config);
    execute(TABLES);
    scheduler =
        Scheduler.create(pool, noop).schedulerName(new SchedulerName.Fixed("compare")).threads(THREADS)
            .pollingInterval(POLL).pollUsingLockAndFetch(4.0, 20.0).serializer(new Bytes()).build();
    long far = nowNs() + A_MONTH_NS;
    addMany(waiting, n -> far + dueOf(n, waiting, A_MONTH_NS), "w");
    execute("ANALYZE scheduled_tasks");
  }

  private void handle(byte[] data, Instant due) {
    if (lateNs.length > 0) {
      lateNs[number(data)] = nowNs() - ns(due);
    }
    runs.incrementAndGet(number(data));
    long n = total.incrementAndGet();
    if (n == 1) {
      firstNs = nowNs();
    }
    if (n == jobs) {
      all.countDown();
    }
  }

  private byte[] params(int n) {
    return ("{\"n\":" + n + ",\"pad\":\"" + pad + "\"}").getBytes(StandardCharsets.UTF_8);
  }

  private static int number(byte[] params) {
    String text = new String(params, StandardCharsets.UTF_8);
    return Integer.parseInt(text.substring("{\"n\":".length(), text.indexOf(',')));
  }

  private void begin() {
    System.out.println("{\"event\":\"begin\"}");
    begunNs = nowNs();
    begunCpuNs = cpuNs();
  }

  /** Waits until every job has run and its row is gone. */
  private void finish(long added) throws Exception {
    all.await();
    while (count("SELECT count(*) FROM (SELECT 1 FROM scheduled_tasks WHERE execution_time <= now() LIMIT 1) x") > 0) {
      Thread.sleep(5);
    }
    long whole = nowNs() - (phase.equals("drain") ? firstNs : begunNs);
    long used = cpuNs() - begunCpuNs;
    System.out.println("{\"event\":\"end\"}");
    scheduler.stop();
    long left = count("SELECT count(*) FROM scheduled_tasks") - waiting;
    long once = 0;
    for (int i = 0; i < jobs; i++) {
      once += runs.get(i) == 1 ? 1 : 0;
    }
    System.out.printf(
        Locale.ROOT,
        "{\"event\":\"result\",\"version\":\"%s\",\"enqueue_s\":%f,\"whole_s\":%f,\"cpu_s\":%f,\"runs\":%d,\"violations\":%d,\"lateness_ms\":%s}%n",
        version(), added / 1e9, whole / 1e9, used / 1e9, total.get(), Math.max(Math.abs(left), jobs - once), quantiles());
    pool.close();
  }

  private long addAll() throws Exception {
    long from = nowNs();
    addMany(jobs, n -> from + dueOf(n, jobs, spreadNs), "");
    return nowNs() - from;
  }

  private void addMany(int count, LongUnaryOperator due, String prefix) throws Exception {
    ExecutorService adders = Executors.newFixedThreadPool(ADDERS);
    List<Future<Void>> calls = new ArrayList<>();
    for (int from = 0; from < count; from += BATCH) {
      int first = from;
      Callable<Void> call = () -> {
        add(first, Math.min(count, first + BATCH), due, prefix);
        return null;
      };
      calls.add(adders.submit(call));
    }
    for (Future<Void> call : calls) {
      call.get();
    }
    adders.shutdown();
  }

  private void add(int from, int to, LongUnaryOperator due, String prefix) {
    List<SchedulableInstance<?>> batch = new ArrayList<>(to - from);
    for (int n = from; n < to; n++) {
      batch.add(SchedulableInstance.of(noop.instance(prefix + n, params(prefix.isEmpty() ? n : 0)), instant(due.applyAsLong(n))));
    }
    scheduler.scheduleBatch(batch);
  }

  private void warmUp() throws Exception {
    if (warmup == 0) {
      return;
    }
    addPaced(0, warmup);
    while (total.get() < warmup) {
      Thread.sleep(PACE_MS);
    }
    Thread.sleep(AFTER_WARMUP_MS);
  }

  private long addPaced(int first, int end) throws Exception {
    long from = nowNs();
    for (int next = first; next < end; ) {
      Thread.sleep(PACE_MS);
      int to = (int) Math.min(end, first + (nowNs() - from) / 1e9 * rate);
      if (to > next) {
        add(next, to, n -> from + aheadNs + (n - first) * 1_000_000_000L / rate, "");
        next = to;
      }
    }
    return nowNs() - from;
  }

  /** Distributes the due instants evenly, in another order than that of the adds. */
  private static long dueOf(long n, long jobs, long spreadNs) {
    return (long) ((double) spreadNs * (n * 7919 % jobs) / jobs);
  }

  private void execute(String sql) throws SQLException {
    try (Connection c = pool.getConnection(); Statement s = c.createStatement()) {
      s.execute(sql);
    }
  }

  private long count(String sql) throws SQLException {
    try (Connection c = pool.getConnection(); Statement s = c.createStatement(); ResultSet r = s.executeQuery(sql)) {
      r.next();
      return r.getLong(1);
    }
  }

  private String quantiles() {
    long[] measured = Arrays.copyOfRange(lateNs, Math.min(warmup, lateNs.length), lateNs.length);
    Arrays.sort(measured);
    return String.format(Locale.ROOT, "{\"p50\":%f,\"p99\":%f,\"max\":%f}", at(measured, 0.5), at(measured, 0.99), at(measured, 1));
  }

  private static double at(long[] sorted, double q) {
    return sorted.length == 0 ? 0 : sorted[Math.min(sorted.length - 1, (int) (q * sorted.length))] / 1e6;
  }

  private static long nowNs() {
    return ns(Instant.now());
  }

  private static long ns(Instant i) {
    return i.getEpochSecond() * 1_000_000_000L + i.getNano();
  }

  private static Instant instant(long ns) {
    return Instant.ofEpochSecond(ns / 1_000_000_000L, ns % 1_000_000_000L);
  }

  private static long cpuNs() {
    return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
  }

  /** Returns the version from the name of the jar, because its manifest has none. */
  private static String version() {
    String path = Scheduler.class.getProtectionDomain().getCodeSource().getLocation().getPath();
    return path.replaceAll(".*/db-scheduler-|\\.jar$", "");
  }

  /** Keeps task data as the bytes that they are. */
  private static final class Bytes implements Serializer {
    @Override
    public byte[] serialize(Object data) {
      return (byte[]) data;
    }

    @Override
    public <T> T deserialize(Class<T> type, byte[] data) {
      return type.cast(data);
    }
  }
}
