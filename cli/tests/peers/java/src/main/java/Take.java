// Takes a lock with a library for Java: Take URL LIBRARY KEY.
import java.time.*;
import net.javacrumbs.shedlock.core.*;
import net.javacrumbs.shedlock.provider.redis.spring.RedisLockProvider;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.redis.util.RedisLockRegistry;

public class Take {
    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[0].replaceAll(".*:", "").replace("/", ""));
        boolean ok;
        if (args[1].equals("shedlock")) {
            var factory = new LettuceConnectionFactory("127.0.0.1", port);
            factory.afterPropertiesSet();
            factory.start();
            var provider = new RedisLockProvider(factory, "env");
            var wanted = new LockConfiguration(Instant.now(), args[2], Duration.ofSeconds(60), Duration.ZERO);
            ok = provider.lock(wanted).isPresent();
        } else {
            var factory = new LettuceConnectionFactory("127.0.0.1", port);
            factory.afterPropertiesSet();
            factory.start();
            ok = new RedisLockRegistry(factory, "registry", 60000).obtain(args[2]).tryLock();
        }
        System.out.println(args[1] + (ok ? " taken" : " busy"));
        Runtime.getRuntime().halt(0);
    }
}
