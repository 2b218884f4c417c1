import com.nimbusds.jose.JOSEException;
import com.nimbusds.jose.JOSEObjectType;
import com.nimbusds.jose.JWSAlgorithm;
import com.nimbusds.jose.jwk.source.JWKSource;
import com.nimbusds.jose.jwk.source.JWKSourceBuilder;
import com.nimbusds.jose.proc.BadJOSEException;
import com.nimbusds.jose.proc.DefaultJOSEObjectTypeVerifier;
import com.nimbusds.jose.proc.JWSVerificationKeySelector;
import com.nimbusds.jose.proc.SecurityContext;
import com.nimbusds.jose.util.JSONObjectUtils;
import com.nimbusds.jwt.JWTClaimsSet;
import com.nimbusds.jwt.SignedJWT;
import com.nimbusds.jwt.proc.DefaultJWTClaimsVerifier;
import com.nimbusds.jwt.proc.DefaultJWTProcessor;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.text.ParseException;
import java.time.Duration;
import java.time.Instant;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/** Verifies tokens of the registry offline and follows its revocations. */
public final class Verify {
  /** The token is invalid, expired or revoked: answer 401. */
  static final class Invalid extends Exception {
    Invalid(String message) { super(message); }
  }

  /** The registry can't be asked: answer 503. */
  static final class Unavailable extends Exception {
    Unavailable(String message) { super(message); }
  }

  private static final Duration MAX_STALE = Duration.ofMinutes(1);

  /** What is known: every revocation up to `asOf`, and when that was read, on two clocks. */
  private record State(Instant asOf, Duration lag, Instant wall, long nanos) {
    static State of(Instant asOf, Instant now) {
      return new State(asOf, Duration.between(asOf, now), Instant.now(), System.nanoTime());
    }

    Duration age() {
      Duration byWall = Duration.between(wall, Instant.now());
      Duration monotonic = Duration.ofNanos(System.nanoTime() - nanos);
      return lag.plus(byWall.compareTo(monotonic) > 0 ? byWall : monotonic);
    }

    boolean stale() { return age().compareTo(MAX_STALE) > 0; }
  }

  private final HttpClient http = HttpClient.newHttpClient();
  private final DefaultJWTProcessor<SecurityContext> processor = new DefaultJWTProcessor<>();
  private final Set<String> retired = ConcurrentHashMap.newKeySet();
  private final String url;
  private final String key;
  private volatile Map<String, Long> revoked = new ConcurrentHashMap<>();
  private volatile State state = new State(Instant.EPOCH, Duration.ZERO, Instant.EPOCH, 0);

  Verify(String url, String key, String issuer, String audience) throws IOException {
    this.url = url;
    this.key = key;
    JWKSource<SecurityContext> keys = JWKSourceBuilder.create(URI.create(url + "/.well-known/jwks.json").toURL())
        .cache(300_000, 5_000).rateLimited(1_000).outageTolerant(60_000).build();
    processor.setJWSTypeVerifier(new DefaultJOSEObjectTypeVerifier<>(new JOSEObjectType("at+jwt")));
    processor.setJWSKeySelector(new JWSVerificationKeySelector<>(JWSAlgorithm.ES256, keys));
    var claims = new DefaultJWTClaimsVerifier<SecurityContext>(
        audience, new JWTClaimsSet.Builder().issuer(issuer).build(), Set.of("sub", "exp", "ver")) {
      /** The registry's time counts. */
      @Override protected Date currentTime() {
        State known = state;
        return Date.from(known.stale() ? known.asOf() : known.asOf().plus(known.age()));
      }
    };
    claims.setMaxClockSkew(0);
    processor.setJWTClaimsSetVerifier(claims);
    Thread thread = new Thread(this::follow, "revocations");
    thread.setDaemon(true);
    thread.start();
  }

  /** Returns the claims of a valid token. */
  JWTClaimsSet verify(String token) throws Invalid, Unavailable {
    try {
      SignedJWT jwt = SignedJWT.parse(token);
      JWTClaimsSet claims = processor.process(jwt, null);
      if (retired.contains(jwt.getHeader().getKeyID())) throw new Invalid("key");
      if (state.stale()) ask(token);
      else if (claims.getLongClaim("ver") < revoked.getOrDefault(claims.getSubject(), 0L)) throw new Invalid("revoked");
      return claims;
    } catch (ParseException | BadJOSEException error) {
      throw new Invalid(error.getMessage());
    } catch (JOSEException error) {
      throw new Unavailable(error.getMessage());
    }
  }

  private void ask(String token) throws Invalid, Unavailable {
    Map<String, Object> answer;
    try {
      answer = call("auth.v1.Users/VerifyToken", Map.of("token", token), 5);
    } catch (Exception error) {
      throw new Unavailable(String.valueOf(error.getMessage()));
    }
    if (!Boolean.TRUE.equals(answer.get("active"))) throw new Invalid("inactive");
  }

  private Map<String, Object> call(String rpc, Map<String, Object> message, int seconds) throws Exception {
    HttpRequest request = HttpRequest.newBuilder(URI.create(url + "/" + rpc))
        .timeout(Duration.ofSeconds(seconds))
        .header("content-type", "application/json")
        .header("authorization", "Bearer " + key)
        .POST(HttpRequest.BodyPublishers.ofString(JSONObjectUtils.toJSONString(message))).build();
    HttpResponse<String> response = http.send(request, HttpResponse.BodyHandlers.ofString());
    if (response.statusCode() != 200) throw new IOException("status " + response.statusCode());
    return JSONObjectUtils.parse(response.body());
  }

  private void follow() {
    String cursor = "";
    Map<String, Long> snapshot = null;
    int wait = 0;
    long pause = 250;
    while (true) {
      try {
        Map<String, Object> page = call("auth.v1.Changes/Poll",
            Map.of("cursor", cursor, "kinds", List.of("CHANGE_KIND_REVOCATIONS"), "wait", wait + "s"), wait + 5);
        pause = 250;
        if (cursor.isEmpty() || page.containsKey("restart")) snapshot = new ConcurrentHashMap<>();
        if ("RESTART_CURSOR_LOST".equals(page.get("restart"))) {
          System.err.println("ALARM: the registry was restored, or lost changes");
          retired.clear(); // A restored registry may have these keys again.
        }
        Object[] revocations = JSONObjectUtils.getJSONObjectArray(page, "revocations");
        for (Object each : revocations == null ? new Object[0] : revocations) {
          Map<?, ?> revocation = (Map<?, ?>) each;
          long generation = ((Number) revocation.get("minGeneration")).longValue();
          revoked.merge((String) revocation.get("sub"), generation, Math::max);
          if (snapshot != null) snapshot.merge((String) revocation.get("sub"), generation, Math::max);
        }
        List<String> keys = JSONObjectUtils.getStringList(page, "retiredKeys");
        if (keys != null) retired.addAll(keys);
        cursor = (String) page.get("cursor");
        wait = page.containsKey("more") ? 0 : 10;
        if (page.get("asOf") instanceof String text) {
          Instant asOf = Instant.parse(text);
          Instant now = Instant.parse((String) page.get("now"));
          if (snapshot != null) revoked = snapshot;
          if (snapshot != null || !asOf.isBefore(state.asOf())) state = State.of(asOf, now);
          snapshot = null;
        }
      } catch (Exception error) {
        System.err.println("the feed doesn't answer: " + error.getMessage());
        try {
          Thread.sleep(pause);
        } catch (InterruptedException end) {
          return;
        }
        pause = Math.min(5_000, 2 * pause);
      }
    }
  }

  public static void main(String[] args) throws Exception {
    Map<String, String> env = System.getenv();
    String url = env.getOrDefault("AUTH_URL", "http://127.0.0.1:8080");
    String audience = env.getOrDefault("AUTH_AUDIENCE", "work-packages");
    Verify verifier = new Verify(url, env.getOrDefault("AUTH_KEY", ""), env.getOrDefault("AUTH_ISSUER", url), audience);
    for (Scanner lines = new Scanner(System.in); lines.hasNextLine();) {
      try {
        System.out.println("valid " + verifier.verify(lines.nextLine().strip()).getSubject());
      } catch (Invalid | Unavailable error) {
        System.out.println(error.getClass().getSimpleName().toLowerCase() + " " + error.getMessage());
      }
    }
  }
}
